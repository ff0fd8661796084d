"""What could change in a schedule: its forwards and backwards without a partner, in groups by rank, stage and phase.

A microbatch of a stage can run as nano-batches when its F, B or I stands alone somewhere. Two can run together when
they are of one stage and kind, consecutive microbatches, and the rank does nothing in between but W, for which nobody
waits.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from annopipe.scheduling.actions import COMPUTE, Action
from annopipe.simulation.ranks.phases import steady_state

__all__ = ["NANO_BATCHES", "TOGETHER", "Group", "Pair", "Unit", "groups"]

NANO_BATCHES, TOGETHER = "nano-batches", "two together"
_WAITED_FOR = ("F", "B", "I")


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Two actions of a rank, by their steps, that may run together."""

    rank: int
    first: int
    second: int
    stage: int
    microbatches: tuple[int, int]


# A microbatch of a stage as (stage, microbatch), or two that run together.
Unit = tuple[int, int] | Pair


@dataclass(frozen=True, slots=True)
class Group:
    """Changes of one sort that are tried at once.

    Attributes:
        rank, stage, phase: where the actions without a partner are.
        change: NANO_BATCHES or TOGETHER.
        units: what is changed, in the order of the rank.
        example: one of the actions.
    """

    rank: int
    stage: int
    phase: str
    change: str
    units: tuple[Unit, ...]
    example: Action


def groups(ranks: Sequence[Sequence[Action]], phases: Sequence[str], stages: Collection[int] | None) -> list[Group]:
    """All groups, rank by rank, a rank's in the order in which it comes to them; `stages` are those that may change.

    >>> rows = [[Action.parse(text) for text in "0F0 0F1 0B0 0B1".split()]]
    >>> [(group.change, group.phase, group.units) for group in groups(rows, ("up", "steady", "down"), None)][0]
    ('nano-batches', 'up', ((0, 0), (0, 1)))
    """
    found: list[Group] = []
    for rank, actions in enumerate(ranks):
        steady = steady_state([{part.kind for part in action.parts or (action,)} for action in actions])
        names = [phases[(step >= steady.start) + (step >= steady.stop)] for step in range(len(actions))]
        found += _nano_groups(rank, actions, names, stages)
        found += _pair_groups(rank, actions, names, stages)
    return found


def _nano_groups(
    rank: int, actions: Sequence[Action], names: Sequence[str], stages: Collection[int] | None
) -> list[Group]:
    split = {
        (part.stage, part.microbatch)
        for action in actions
        for part in action.parts or (action,)
        if part.nano_batches > 1
    }
    first: dict[tuple[int, int], tuple[str, Action]] = {}
    for action, name in zip(actions, names, strict=True):
        if action.kind in _WAITED_FOR and action.microbatch is not None and (stages is None or action.stage in stages):
            unit = action.stage, action.microbatch
            if unit not in split:
                first.setdefault(unit, (name, action))
    gathered: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for (stage, microbatch), (name, _) in first.items():
        gathered.setdefault((stage, name), []).append((stage, microbatch))
    return [
        Group(rank, stage, name, NANO_BATCHES, tuple(units), first[units[0]][1])
        for (stage, name), units in gathered.items()
    ]


def _pair_groups(
    rank: int, actions: Sequence[Action], names: Sequence[str], stages: Collection[int] | None
) -> list[Group]:
    gathered: dict[tuple[int, str, str], list[Pair]] = {}
    before: tuple[int, Action] | None = None
    for step, action in enumerate(actions):
        if action.kind == "W":
            continue
        if (
            action.kind not in _WAITED_FOR
            or action.nano_batches > 1
            or (stages is not None and action.stage not in stages)
        ):
            before = None
            continue
        pair = _pair(rank, before, (step, action)) if before else None
        if pair is None:
            before = step, action
            continue
        gathered.setdefault((action.stage, action.kind, names[pair.first]), []).append(pair)
        before = None
    return [
        Group(rank, stage, name, TOGETHER, tuple(pairs), actions[pairs[0].first])
        for (stage, _, name), pairs in gathered.items()
    ]


def _pair(rank: int, one: tuple[int, Action], other: tuple[int, Action]) -> Pair | None:
    (first, before), (second, after) = one, other
    if before.kind != after.kind or before.stage != after.stage or before.kind not in COMPUTE:
        return None
    if before.microbatch is None or after.microbatch != before.microbatch + 1:
        return None
    return Pair(rank, first, second, before.stage, (before.microbatch, after.microbatch))
