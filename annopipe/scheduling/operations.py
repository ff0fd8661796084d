"""Operations that a user adds to a schedule: recomputation, offloading, all-reduce, optimizer step, anything.

An operation is written into the rank's list next to the action it belongs to. The checker and the simulator know what
it waits for and what waits for it.

    per microbatch    after="F": right behind the forward of its stage and microbatch
                      before="B": right in front of the backward (B, or I where the backward is split)
    per stage         after="W": behind the last weight gradient of the stage (W, or B where it is not split)
                      before="F": in front of the first forward of the stage

What belongs to a part of a combination stands behind or in front of the whole of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import BUILTIN_KINDS, Action
from annopipe.scheduling.numbering import Numberer, Numbering
from annopipe.scheduling.placement import Placement

__all__ = ["Operation", "insert_operations"]

# What an operation follows or precedes, in either form of the backward.
_ANCHORS = {"F": ("F",), "B": ("B", "I"), "W": ("B", "W")}


@dataclass(frozen=True)
class Operation:
    """One kind of operation that a schedule inserts.

    Attributes:
        name: how its actions are written: two or more capitals, such as "OFFLOAD" in 2OFFLOAD0.
        after, before: the action that it follows, or precedes: give one. "B" is B, or I where the backward is split;
            "W" is W, or B where it is not.
        per: "microbatch" or "stage".
        stages: on which stages; None is all.
        time: how long it takes, in the units of the costs.
        resource: "compute": the rank does nothing else meanwhile. Any other name: a resource of the rank's own that
            carries one operation after the other beside the computation; what needs the operation waits for it.
        memory: what it changes in the memory that the microbatch keeps on the stage, as a share of its activation, for
            after="F" and before="B": negative at its end (an offload), positive from its start (what recomputation
            brings back). The backward gives back what is then kept.

    Raises ScheduleError when the fields do not fit together.

    >>> Operation("OFFLOAD", after="F", time=0.2, resource="copy", memory=-0.8).name
    'OFFLOAD'
    """

    name: str
    after: str | None = None
    before: str | None = None
    per: str = "microbatch"
    stages: tuple[int, ...] | None = None
    time: float = 0.0
    resource: str = "compute"
    memory: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.stages, Iterable):
            object.__setattr__(self, "stages", tuple(self.stages))
        problem = _problem(self)
        if problem:
            raise ScheduleError(f"operation {self.name!r}: {problem}")

    def applies_to(self, stage: int) -> bool:
        """Whether the stage has this operation."""
        return self.stages is None or stage in self.stages

    @property
    def anchors(self) -> tuple[str, ...]:
        """The kinds of action that it follows or precedes."""
        return _ANCHORS[self.after or self.before or ""]

    def action(self, stage: int, microbatch: int) -> Action:
        """The operation as an action; the microbatch says nothing when it is done once per stage."""
        return Action(self.name, stage, None if self.per == "stage" else microbatch)

    def time_of(self, stage: int, microbatch: int, costs: ActionCosts) -> float:
        """How long it takes: what the costs say about its kind, or else its own time."""
        return costs.duration(self.action(stage, microbatch)) if self.name in costs.operations else self.time


def insert_operations(
    placement: Placement, numbering: Numbering, ranks: Sequence[Sequence[int]], operations: Sequence[Operation]
) -> tuple[Numbering, list[list[int]]]:
    """The same lists of numbers with the actions of the operations in their places.

    Raises ScheduleError for operations that do not fit the schedule or each other.

    >>> from annopipe.scheduling import placement
    >>> offload = Operation("OFFLOAD", after="F")
    >>> found, ranks = insert_operations(placement.linear(1), Numbering(1, 1), [[0, 1]], [offload])
    >>> [found.text(number) for number in ranks[0]]
    ['0F0', '0OFFLOAD0', '0B0']
    """
    _refuse_unfit(placement, operations)
    numberer = Numberer(numbering.stages, numbering.microbatches, numbering.extras)
    inserted = [_with_operations(numberer, numbering, program, operations) for program in ranks]
    found = numberer.numbering()
    kinds = {action.kind for action in found.extras}
    for operation in operations:
        if operation.name not in kinds:
            raise ScheduleError(
                f"operation {operation.name!r} {_where(operation)}, and the schedule has none on its stages; drop it, "
                "or let it belong to another action"
            )
    return found, inserted


def _refuse_unfit(placement: Placement, operations: Sequence[Operation]) -> None:
    names = [operation.name for operation in operations]
    if len(set(names)) < len(names):
        raise ScheduleError(f"two operations are called {max(names, key=names.count)!r}; give each its own name")
    for operation in operations:
        wrong = [stage for stage in operation.stages or () if stage >= placement.stages]
        if wrong:
            raise ScheduleError(
                f"operation {operation.name!r} is for stage {wrong[0]}; stages are 0 to {placement.stages - 1}"
            )
    for stage in range(placement.stages):
        kept = 1.0 + math.fsum(operation.memory for operation in operations if operation.applies_to(stage))
        if kept < -1e-9:
            raise ScheduleError(
                f"operations leave {kept:g} of the activation of stage {stage}; take away as much as is there"
            )


def _with_operations(
    numberer: Numberer, numbering: Numbering, program: Sequence[int], operations: Sequence[Operation]
) -> list[int]:
    """The program of one rank with the operations in it."""
    behind: dict[int, list[int]] = {}
    in_front: dict[int, list[int]] = {}
    # By stage and place among the operations: those once per stage, at the last action that they follow or the first
    # that they precede.
    once: dict[tuple[int, int], tuple[int, int]] = {}
    for step, whole in enumerate(map(numbering.action, program)):
        for action in whole.singles:
            for index, operation in enumerate(operations):
                if action.kind not in operation.anchors or not operation.applies_to(action.stage):
                    continue
                number = numberer.number(operation.action(action.stage, action.microbatch or 0))
                if operation.per == "microbatch":
                    (behind if operation.after else in_front).setdefault(step, []).append(number)
                elif operation.after or (action.stage, index) not in once:
                    once[action.stage, index] = step, number
    for (_, index), (step, number) in once.items():
        (behind if operations[index].after else in_front).setdefault(step, []).append(number)
    result: list[int] = []
    for step, number in enumerate(program):
        result += [*in_front.get(step, ()), number, *behind.get(step, ())]
    return result


def _where(operation: Operation) -> str:
    side = "follows" if operation.after else "precedes"
    return f"{side} {' or '.join(operation.anchors)}"


def _problem(operation: Operation) -> str:
    if not isinstance(operation.name, str) or operation.name in BUILTIN_KINDS:
        return "the name is taken by an action of every schedule, or no text; choose another"
    Action(operation.name, 0)  # refuses a name that is not two or more capitals
    if (operation.after is None) == (operation.before is None):
        return "give after= or before=, one of the two"
    anchor = operation.before if operation.after is None else operation.after
    if not isinstance(anchor, str) or anchor not in _ANCHORS:
        told = '; write "B", which is the backward in whichever form, I where it is split' if anchor == "I" else ""
        return f"it follows or precedes {anchor!r}; it can be F, B or W{told}"
    if operation.per not in ("microbatch", "stage"):
        return f"per={operation.per!r}: it is done per 'microbatch' or per 'stage'"
    return _amount_problem(operation)


def _amount_problem(operation: Operation) -> str:
    stages, time, memory = operation.stages, operation.time, operation.memory
    if stages is not None and not (isinstance(stages, tuple) and all(type(s) is int and s >= 0 for s in stages)):
        return f"stages={stages!r}: give whole numbers, 0 or more, or None for all"
    if not _is_number(time) or time < 0.0:
        return f"time={time!r}: give a number that is finite and not negative"
    if not isinstance(operation.resource, str) or not operation.resource:
        return f"resource={operation.resource!r}: give 'compute', or the name of another resource"
    if not _is_number(memory) or abs(memory) > 1.0:
        return f"memory={memory!r}: it is a share of the activation of one microbatch, -1 to 1"
    if memory and (operation.per == "stage" or (operation.after != "F" and operation.before != "B")):
        return "memory is what a microbatch keeps from forward to backward; change it after='F' or before='B'"
    return ""


def _is_number(value: object) -> bool:
    # Real: numbers of numpy too.
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
