"""What could change in a schedule: its forwards and backwards without a partner, in groups by rank, stage and phase.

A microbatch of a stage can run as nano-batches when its F, B or I stands alone somewhere. Two can run together when
they are of one stage and kind, consecutive microbatches, and the rank does nothing in between but W, for which nobody
waits. A W that stands beside an F, B or I can be its partner.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from annopipe.scheduling.actions import Action
from annopipe.simulation.ranks.phases import steady_state

__all__ = ["CHANGES", "NANO_BATCHES", "TOGETHER", "WITH_WEIGHT", "Group", "Pair", "Unit", "groups"]

NANO_BATCHES, TOGETHER, WITH_WEIGHT = CHANGES = ("nano-batches", "two together", "with a W")
_WAITED_FOR = ("F", "B", "I")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two actions of a rank, by their steps, that may run together, in place of the first.

    Attributes:
        rank, first, second: where they are.
        microbatch: the first of which one waits for.
    """

    rank: int
    first: int
    second: int
    microbatch: int


# A microbatch of a stage as (stage, microbatch), or two that run together.
Unit = tuple[int, int] | Pair


@dataclass(frozen=True, slots=True)
class Group:
    """Changes of one sort that are tried at once.

    Attributes:
        rank, stage, phase: where the actions without a partner are.
        change: NANO_BATCHES, TOGETHER or WITH_WEIGHT.
        units: what is changed, in the order of the rank.
        example: what the first of them changes: one action, or two.
    """

    rank: int
    stage: int
    phase: str
    change: str
    units: tuple[Unit, ...]
    example: tuple[Action, ...]


def groups(ranks: Sequence[Sequence[Action]], phases: Sequence[str], stages: Collection[int] | None) -> list[Group]:
    """All groups, rank by rank, a rank's in the order in which it comes to them; `stages` are those that may change.

    >>> rows = [[Action.parse(text) for text in "0F0 0F1 0B0 0B1".split()]]
    >>> [(group.change, group.phase, group.units) for group in groups(rows, ("up", "steady", "down"), None)][:1]
    [('nano-batches', 'up', ((0, 0), (0, 1)))]
    """
    found: list[Group] = []
    for rank, actions in enumerate(ranks):
        own = _Rank(rank, actions, phases, stages)
        found += [*own.nano_groups(), *own.together_groups(), *own.weight_groups()]
    return found


class _Rank:
    """One rank's actions, with the phase of each."""

    def __init__(
        self, rank: int, actions: Sequence[Action], phases: Sequence[str], stages: Collection[int] | None
    ) -> None:
        self.rank, self.actions, self._stages = rank, actions, stages
        steady = steady_state([action.kinds for action in actions])
        self.phases = [phases[(step >= steady.start) + (step >= steady.stop)] for step in range(len(actions))]

    def may_change(self, action: Action, kinds: Collection[str] = _WAITED_FOR) -> bool:
        """Whether it is an action of these kinds without a partner, of a stage that may change."""
        return action.kind in kinds and (self._stages is None or action.stage in self._stages)

    def nano_groups(self) -> list[Group]:
        """Microbatches as nano-batches; those that are already stay as they are."""
        singles = [part for action in self.actions for part in action.singles]
        split = {(part.stage, part.microbatch) for part in singles if part.nano_batches > 1}
        first: dict[tuple[int, int], int] = {}
        for step, action in enumerate(self.actions):
            if self.may_change(action) and (action.stage, action.microbatch) not in split:
                first.setdefault((action.stage, action.microbatch or 0), step)
        gathered: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for unit, step in first.items():
            gathered.setdefault((unit[0], self.phases[step]), []).append(unit)
        return [
            Group(self.rank, stage, phase, NANO_BATCHES, tuple(units), (self.actions[first[units[0]]],))
            for (stage, phase), units in gathered.items()
        ]

    def together_groups(self) -> list[Group]:
        """Every two consecutive microbatches."""
        pairs: list[Pair] = []
        before = -1
        for step, action in enumerate(self.actions):
            if action.kind == "W":
                continue
            if before >= 0 and self.may_change(action) and _follows(self.actions[before], action):
                pairs.append(Pair(self.rank, before, step, self.actions[before].microbatch or 0))
                before = -1
            else:
                before = step if self.may_change(action) else -1
        return self._grouped(TOGETHER, pairs, [pair.first for pair in pairs])

    def weight_groups(self) -> list[Group]:
        """Every F, B or I with the W behind it, and every one with the W before it."""
        found = []
        for offset in (0, 1):  # where the one that is waited for stands
            pairs, mains = [], []
            for step, two in enumerate(pairwise(self.actions)):
                main, weight = two[offset], two[1 - offset]
                alike = (main.stage, main.microbatch) == (weight.stage, weight.microbatch)
                if self.may_change(main) and self.may_change(weight, ("W",)) and not alike:
                    pairs.append(Pair(self.rank, step, step + 1, main.microbatch or 0))
                    mains.append(step + offset)
            found += self._grouped(WITH_WEIGHT, pairs, mains)
        return found

    def _grouped(self, change: str, pairs: Sequence[Pair], mains: Sequence[int]) -> list[Group]:
        """Groups by stage, kind and phase of the actions that are waited for."""
        gathered: dict[tuple[int, str, str], list[Pair]] = {}
        for pair, step in zip(pairs, mains, strict=True):
            action = self.actions[step]
            gathered.setdefault((action.stage, action.kind, self.phases[step]), []).append(pair)
        return [
            Group(
                self.rank, stage, phase, change, tuple(own), (self.actions[own[0].first], self.actions[own[0].second])
            )
            for (stage, _, phase), own in gathered.items()
        ]


def _follows(before: Action, after: Action) -> bool:
    alike = before.kind == after.kind and before.stage == after.stage
    return alike and after.microbatch == (before.microbatch or 0) + 1
