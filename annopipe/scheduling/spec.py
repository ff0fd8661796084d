"""What a schedule is generated from: a value that can be printed, compared and varied by a program.

Two ways, one value: rules (each rank takes the best ready action as it becomes free), or phases (the exact order).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.explaining import Decision, explain_phases
from annopipe.scheduling.generator import Generator
from annopipe.scheduling.operations import Operation, insert_operations
from annopipe.scheduling.phased import phased_ranks
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.rules import Limit, Rules
from annopipe.scheduling.schedule import Schedule

__all__ = ["ScheduleSpec"]


@dataclass(frozen=True, repr=False)
class ScheduleSpec:
    """A pipeline schedule before it is built; `build` makes it.

    Attributes:
        placement: which rank holds which stage.
        microbatches: how many microbatches a step has.
        priority: the computations that exist, the most urgent first: ("B", "F") is the full backward before the
            forward, ("I", "F", "W") separates gradients, ("F",) has no backward. For rules.
        split_backward: whether the backward is I and W: one answer, one per stage, or "unpaired": full in a
            combination, split elsewhere. None: what `priority` says.
        traversal: the order of forwards: "depth-first" (the oldest microbatch first), "breadth-first" (the first chunk
            first), or a formula such as "k // p, c, k" (see `annopipe.scheduling.formulas`).
        backward_traversal: the order of backwards; None is that of the forwards from the last chunk to the first.
        in_order: (kind, formula) pairs: these kinds run strictly in the order of their keys, a rank waits for the next
            one; the other kinds fill what is left.
        in_flight: how many forwards without their backward (B or I) a rank may hold: a number, one per rank, a formula;
            a formula with s or c limits each stage by itself.
        memory: how much activation a rank may hold, from the forward to the end of B or W, in the units of the costs: a
            number or one per rank.
        pair: the kinds that run as one combination whenever both are ready, such as ("F", "B").
        phases: the exact order instead of rules: see `annopipe.scheduling.phases`.
        layout_for: phases are laid out for at least this many microbatches, and those that are not there left out.
        operations: what else is done: recomputation, offloading, an optimizer step.
        costs: what the rules assume about times, and about the memory that `memory` limits.
        name: what tables call it; not compared.

    Raises ScheduleError, when it is made or built, for fields that do not fit together.

    >>> from annopipe.scheduling import placement
    >>> spec = ScheduleSpec(placement.linear(2), 3, priority=("B", "F"), in_flight="p - r")
    >>> [" ".join(map(str, actions)) for actions in spec.build().ranks]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """

    placement: Placement
    microbatches: int
    priority: tuple[str, ...] = ("B", "F")
    split_backward: bool | str | tuple[bool, ...] | None = None
    traversal: str = "depth-first"
    backward_traversal: str | None = None
    in_order: tuple[tuple[str, str], ...] = ()
    in_flight: Limit = None
    memory: float | tuple[float, ...] | None = None
    pair: tuple[str, str] | None = None
    phases: tuple[str, ...] = ()
    layout_for: str = "m"
    operations: tuple[Operation, ...] = ()
    costs: ActionCosts = field(default_factory=ActionCosts)
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ScheduleError(f"{self.name or 'schedule spec'}: {problem}")

    def __repr__(self) -> str:
        """The fields that differ from their defaults, as a call that makes the same value."""
        default = type(self)(self.placement, self.microbatches)
        shown = [repr(self.placement), repr(self.microbatches)]
        for name in type(self).__dataclass_fields__:
            value = getattr(self, name)
            if name not in ("placement", "microbatches") and value != getattr(default, name):
                shown.append(f"{name}={value!r}")
        return f"ScheduleSpec({', '.join(shown)})"

    def varied(self, **changes: Any) -> "ScheduleSpec":
        """The same specification with other fields.

        Raises ScheduleError for a field that there is not.

        >>> from annopipe.scheduling import placement
        >>> spec = ScheduleSpec(placement.linear(2), 3)
        >>> spec.varied(in_flight=2) == ScheduleSpec(placement.linear(2), 3, in_flight=2)
        True
        """
        unknown = sorted(set(changes) - set(type(self).__dataclass_fields__))
        if unknown:
            raise ScheduleError(f"a ScheduleSpec has no field {unknown[0]!r}; it has {', '.join(self.__match_args__)}")
        return replace(self, **changes)

    def build(self) -> Schedule:
        """Generate the schedule; the same specification gives the same schedule everywhere.

        Raises ScheduleError when a limit leaves no way to finish, or phases do not add up.
        """
        if self.phases:
            programs = Programs.of(self.placement, self.microbatches, phased_ranks(self))
        else:
            numbers = Generator(Rules.of(self)).run()
            programs = Programs.of_numbers(self.placement, self.microbatches, numbers)
        if self.operations:
            numbering, inserted = insert_operations(self.placement, programs.numbering, programs.ranks, self.operations)
            programs = Programs.numbered(self.placement, numbering, inserted)
        return Schedule(programs, self.name, self.operations)

    def explain(self, rank: int, step: int) -> Decision:
        """Why a rank does what it does at a step (counted from 0, without inserted operations).

        Raises ScheduleError when there is no such rank or step.
        """
        if not 0 <= rank < self.placement.ranks:
            raise ScheduleError(f"there is no rank {rank}; ranks are 0 to {self.placement.ranks - 1}")
        if self.phases:
            return explain_phases(self, rank, step)
        generator = Generator(Rules.of(self), watch=(rank, step))
        steps = len(generator.run()[rank])
        if generator.decision is None:
            raise ScheduleError(f"rank {rank} has no step {step}; its steps are 0 to {steps - 1}")
        return generator.decision


def _problem(spec: ScheduleSpec) -> str:
    if not isinstance(spec.placement, Placement):
        return f"placement is {spec.placement!r}; make one with annopipe.placement, such as placement.linear(ranks=4)"
    if not isinstance(spec.costs, ActionCosts):
        return f"costs is {spec.costs!r}; make them with annopipe.costs.table"
    if not isinstance(spec.microbatches, int) or isinstance(spec.microbatches, bool) or spec.microbatches < 1:
        return f"microbatches={spec.microbatches!r}: give a whole number, 1 or more"
    unknown = [kind for kind in spec.priority if kind not in COMPUTE]
    if unknown or "F" not in spec.priority or len(set(spec.priority)) < len(spec.priority):
        return f"priority={spec.priority!r}: name each of F, B, I and W at most once, and F"
    if ("I" in spec.priority) != ("W" in spec.priority):
        return f"priority={spec.priority!r}: a separated backward is I and W, name both"
    if spec.phases and (spec.in_order or spec.pair or spec.in_flight is not None or spec.memory is not None):
        return "phases give the exact order; limits, pairs and in_order belong to rules"
    if spec.pair is not None and (len(spec.pair) != 2 or spec.pair[0] != "F" or spec.pair[1] not in ("B", "I", "W")):
        return f"pair={spec.pair!r}: a pair is F with B, I or W"
    return _split_problem(spec)


def _split_problem(spec: ScheduleSpec) -> str:
    split: object = spec.split_backward
    if isinstance(split, str) and (split != "unpaired" or spec.pair != ("F", "B")):
        return f"split_backward={split!r}: 'unpaired' goes with pair=('F', 'B'); else give True, False or one per stage"
    if isinstance(split, Sequence) and not isinstance(split, str) and len(split) != spec.placement.stages:
        return (
            f"split_backward has {len(split)} entries and there are {spec.placement.stages} stages; give one for each"
        )
    answers = {bool(split)} if not isinstance(split, Sequence) or isinstance(split, str) else set(map(bool, split))
    if split is None or spec.phases:
        return ""
    if True in answers and "I" not in spec.priority:
        return f"a backward is split and priority={spec.priority!r} has no I and W; say where they belong"
    if (False in answers or split == "unpaired") and "B" not in spec.priority:
        return f"a backward is not split and priority={spec.priority!r} has no B; say where it belongs"
    return ""
