"""The fields of a specification, and what of them does not fit together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement

__all__ = ["Limit", "SpecFields"]

Limit = int | str | tuple[int, ...] | None


@dataclass(frozen=True, repr=False)
class SpecFields:
    """What `ScheduleSpec` holds: see there.

    Raises ScheduleError for fields that do not fit together.
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


def _problem(spec: SpecFields) -> str:
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


def _split_problem(spec: SpecFields) -> str:
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
