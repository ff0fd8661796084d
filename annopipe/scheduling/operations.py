"""Operations that a user adds to a schedule: recomputation, offloading, all-reduce, optimizer step, anything.

An operation is written into the rank's list next to the action it belongs to. The checker and the simulator know what
it waits for and what waits for it.

    per microbatch    after="F": right behind the forward of its stage and microbatch
                      before="B": right in front of the backward (B, or I where the backward is split)
    per stage         after="W": behind the last weight gradient of the stage (W, or B where it is not split)
                      before="F": in front of the first forward of the stage
"""

from collections.abc import Sequence
from dataclasses import dataclass

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import BUILTIN_KINDS, Action
from annopipe.scheduling.numbering import Numberer, Numbering
from annopipe.scheduling.placement import Placement

__all__ = ["Operation", "insert_operations"]


@dataclass(frozen=True)
class Operation:
    """One kind of operation that a schedule inserts.

    Attributes:
        name: how its actions are written: two or more capitals, such as "OFFLOAD" in 2OFFLOAD0.
        after, before: the action that it follows, or precedes: give one. "B" means the backward in whichever form.
        per: "microbatch" or "stage".
        stages: on which stages; None is all.
        time: how long it takes, in the units of the costs.
        resource: "compute": the rank does nothing else meanwhile. Any other name: a resource of the rank's own that
            carries one operation after the other beside the computation; what needs the operation waits for it.
        memory: what it changes in the memory that the microbatch keeps on the stage, as a share of its activation:
            negative at its end (an offload), positive from its start (what recomputation brings back).

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
        problem = _problem(self)
        if problem:
            raise ScheduleError(f"operation {self.name!r}: {problem}")

    def applies_to(self, stage: int) -> bool:
        """Whether the stage has this operation."""
        return self.stages is None or stage in self.stages

    def anchors(self, action: Action) -> bool:
        """Whether an F, B, I or W is what the operation follows or precedes."""
        anchor = self.after or self.before
        if anchor == "F":
            return action.kind == "F"
        if anchor == "W" or (self.per == "stage" and self.after):
            return action.kind in ("B", "W")
        return action.kind in ("B", "I")


def insert_operations(
    placement: Placement, numbering: Numbering, ranks: Sequence[Sequence[int]], operations: Sequence[Operation]
) -> tuple[Numbering, list[list[int]]]:
    """The same lists of numbers with the actions of the operations in their places.

    >>> from annopipe.scheduling import placement
    >>> offload = Operation("OFFLOAD", after="F")
    >>> found, ranks = insert_operations(placement.linear(1), Numbering(1, 1), [[0, 1]], [offload])
    >>> [found.text(number) for number in ranks[0]]
    ['0F0', '0OFFLOAD0', '0B0']
    """
    names = [operation.name for operation in operations]
    if len(set(names)) < len(names):
        raise ScheduleError(f"two operations are called {max(names, key=names.count)!r}; give each its own name")
    for operation in operations:
        wrong = [stage for stage in operation.stages or () if not 0 <= stage < placement.stages]
        if wrong:
            raise ScheduleError(
                f"operation {operation.name!r} is for stage {wrong[0]}; stages are 0 to {placement.stages - 1}"
            )
    numberer = Numberer(numbering.stages, numbering.microbatches, numbering.extras)
    inserted = [_with_operations(numberer, numbering, program, operations) for program in ranks]
    return numberer.numbering(), inserted


def _with_operations(
    numberer: Numberer, numbering: Numbering, program: Sequence[int], operations: Sequence[Operation]
) -> list[int]:
    steps = [numbering.action(number) for number in program]
    behind: dict[int, list[int]] = {}
    in_front: dict[int, list[int]] = {}
    once: dict[tuple[str, int], tuple[int, int]] = {}
    for step, whole in enumerate(steps):
        for action in whole.parts or (whole,):
            for operation in operations:
                if not operation.applies_to(action.stage) or not operation.anchors(action):
                    continue
                if operation.per == "stage":
                    number = numberer.number(Action(operation.name, action.stage))
                    key = (operation.name, action.stage)
                    if operation.after or key not in once:
                        once[key] = (step, number)
                else:
                    number = numberer.number(Action(operation.name, action.stage, action.microbatch))
                    (behind if operation.after else in_front).setdefault(step, []).append(number)
    follows = {operation.name: bool(operation.after) for operation in operations}
    for (name, _), (step, number) in once.items():
        (behind if follows[name] else in_front).setdefault(step, []).append(number)
    result: list[int] = []
    for step, number in enumerate(program):
        result += [*in_front.get(step, ()), number, *behind.get(step, ())]
    return result


def _problem(operation: Operation) -> str:
    if operation.name in BUILTIN_KINDS:
        return "the name is taken by an action of every schedule; choose another"
    Action(operation.name, 0)  # refuses a name that is not two or more capitals
    if (operation.after is None) == (operation.before is None):
        return "give after= or before=, one of the two"
    if operation.after not in (None, "F", "B", "W") or operation.before not in (None, "F", "B", "W"):
        return "it follows or precedes F, B or W"
    if operation.per not in ("microbatch", "stage"):
        return f"per={operation.per!r}: it is done per 'microbatch' or per 'stage'"
    if not operation.time >= 0.0 or not operation.resource:
        return "give a time that is not negative, and the name of a resource"
    if not -1.0 <= operation.memory <= 1.0 or (operation.memory and operation.per == "stage"):
        return "memory is a share of the activation of one microbatch, -1 to 1"
    return ""
