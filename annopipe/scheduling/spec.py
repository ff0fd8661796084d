"""What a schedule is generated from: a value that can be printed, compared and varied by a program.

Two ways, one value: rules (each rank takes the best ready action as it becomes free), or phases (the exact order).
"""

from dataclasses import dataclass, replace
from typing import Any

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.explaining import Decision, explain_phases, missing_step, waiting
from annopipe.scheduling.generation.generator import Generator
from annopipe.scheduling.generation.phased import phased_ranks
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.scheduling.operations import insert_operations
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.schedule_class import Schedule

__all__ = ["ScheduleSpec"]


@dataclass(frozen=True, repr=False)
class ScheduleSpec(SpecFields):
    """A pipeline schedule before it is built; `build` makes it.

    Attributes:
        placement: which rank holds which stage.
        microbatches: how many microbatches a step has.
        priority: the computations that exist, the most urgent first: ("B", "F") is the full backward before the
            forward, ("I", "F", "W") separates gradients, ("F",) has no backward. Phases ask only whether there is one.
        split_backward: whether the backward is I and W: one answer, one per stage, or "unpaired": full in a
            combination, split elsewhere. None: what `priority` says.
        traversal: the order of forwards: "depth-first" (the oldest microbatch first), "breadth-first" (the first chunk
            first), or a formula such as "k // p, c, k" (see `annopipe.scheduling.generation.formulas`).
        backward_traversal: the order of backwards; None is that of the forwards from the last chunk to the first.
        in_order: (kind, formula) pairs: these kinds run strictly in the order of their keys, a rank waits for the next
            one, and takes it before anything else; the other kinds fill what is left.
        in_flight: how many forwards without their backward (B or I) a rank may hold: a number, one per rank, a formula;
            a formula with s or c limits each stage by itself. A combination counts when it has ended. Without a
            backward there is no limit.
        memory: how much activation a rank may hold, from the start of the forward to the end of B or W, in the units of
            the costs: a number or one per rank.
        pair: the kinds that run as one combination whenever both are ready, such as ("F", "B").
        phases: the exact order instead of rules: see `annopipe.scheduling.generation.phases`.
        layout_for: phases are laid out for at least this many microbatches, and those that are not there left out.
        operations: what else is done: recomputation, offloading, an optimizer step.
        costs: what the rules assume about times, and about the memory that `memory` limits.
        name: what tables call it; not compared.

    Raises ScheduleError, when it is made or built, for fields that do not fit together; CostError for costs of another
    count of stages.

    >>> from annopipe.scheduling import placement
    >>> spec = ScheduleSpec(placement.linear(2), 3, priority=("B", "F"), in_flight="p - r")
    >>> [" ".join(map(str, actions)) for actions in spec.build().ranks]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """

    def __repr__(self) -> str:
        """The placement, the microbatches, and the fields that differ from their defaults."""
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
        """Why a rank does what it does at a step (counted from 0, without inserted operations), and what it waited for.

        Raises ScheduleError when there is no such rank or step.
        """
        if type(rank) is not int or not 0 <= rank < self.placement.ranks:
            raise ScheduleError(f"there is no rank {rank!r}; ranks are 0 to {self.placement.ranks - 1}")
        decision = explain_phases(self, rank, step) if self.phases else self._explain_rules(rank, step)
        idle, waited_for = waiting(self.varied(operations=()).build().simulated(self.costs), rank, step)
        return replace(decision, idle=idle, waited_for=waited_for)

    def _explain_rules(self, rank: int, step: int) -> Decision:
        generator = Generator(Rules.of(self), watch=(rank, step))
        steps = len(generator.run()[rank])
        if generator.decision is None or type(step) is not int:
            raise missing_step(rank, step, steps)
        return generator.decision
