"""How long a step takes with some changes: simulated, with only what depends on the changes worked out anew.

Nano-batches change how long actions take and nothing else, so that many choices share one table of what waits for what.
Two microbatches that run together change the order: they have a table of their own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from annopipe.errors import GraphError, ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE, Action, overlap
from annopipe.scheduling.checking.checker import check
from annopipe.scheduling.lanes import with_parts
from annopipe.scheduling.nano_batching.candidates import Pair, Unit
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.simulating import rank_programs
from annopipe.simulation.ranks.engine import run
from annopipe.simulation.ranks.programs import RankPrograms

__all__ = ["Choice", "Evaluator", "Score", "changed"]

Choice = frozenset[Unit]
_KEPT = 8  # tables, of which each may take a megabyte


class Score(NamedTuple):
    """How good a choice is; the smaller the better.

    Attributes:
        makespan: of the step.
        busy: seconds that ranks spend in their actions, all ranks together: less where more communication is hidden.
        changes: how many microbatches are changed.
    """

    makespan: float
    busy: float
    changes: int


def changed(ranks: Sequence[Sequence[Action]], choice: Choice, parts: int) -> list[list[Action]]:
    """The actions of each rank with the changes of a choice.

    >>> row = [Action.parse(text) for text in ("0F0", "0F1", "0F2", "0B0", "0B1", "0B2")]
    >>> [str(action) for action in changed([row], frozenset({(0, 0), Pair(0, 1, 2, 1)}), 2)[0]]
    ['0F0/2', '(0F1;0F2)OVERLAP', '0B0/2', '0B1', '0B2']
    """
    pairs = [unit for unit in choice if isinstance(unit, Pair)]
    split = {unit for unit in choice if not isinstance(unit, Pair)}
    found = []
    for rank, actions in enumerate(ranks):
        together = {pair.first: pair.second for pair in pairs if pair.rank == rank}
        away = set(together.values())
        row = [
            overlap(action, actions[together[step]]) if step in together else action
            for step, action in enumerate(actions)
            if step not in away
        ]
        found.append([_in_parts(action, split, parts) for action in row])
    return found


class Evaluator:
    """Scores choices for one schedule and its costs.

    Attributes:
        spent: how much was simulated, in actions; a table counts as several simulations.
    """

    def __init__(
        self,
        programs: Programs,
        costs: ActionCosts,
        operations: Sequence[Operation],
        parts: int,
        memory: float | None,
    ) -> None:
        self.ranks = [list(programs.actions(rank)) for rank in range(programs.placement.ranks)]
        self._costs, self._operations, self._parts, self._memory = costs, operations, parts, memory
        self._placement, self._microbatches = programs.placement, programs.microbatches
        self._tables: dict[Choice, _Table | None] = {}
        self._scores: dict[Choice, Score | None] = {}
        self._singles = _Singles(costs, parts)
        self.spent = 0

    def score(self, choice: Choice) -> Score | None:
        """The score; None where ranks wait for each other or lack memory, or where graphs cannot be lanes of one."""
        if choice not in self._scores:
            self._scores[choice] = self._new_score(choice)
        return self._scores[choice]

    def _new_score(self, choice: Choice) -> Score | None:
        pairs = frozenset(unit for unit in choice if isinstance(unit, Pair))
        try:
            table = self._table(pairs)
            if table is None:
                return None
            self.spent += table.size
            makespan, busy = table.simulated(unit for unit in choice if not isinstance(unit, Pair))
        except GraphError:
            if choice:  # graphs that cannot be lanes of one: two forwards that update a buffer, say
                return None
            raise
        return Score(makespan, busy, len(choice) + len(pairs))

    def programs(self, choice: Choice) -> Programs:
        """The schedule with the changes."""
        return self._programs(changed(self.ranks, choice, self._parts))

    def _programs(self, ranks: Sequence[Sequence[Action]]) -> Programs:
        return Programs.of(self._placement, self._microbatches, ranks)

    def _table(self, pairs: Choice) -> "_Table | None":
        """The table of an order; the latest few are kept."""
        found = self._tables.pop(pairs) if pairs in self._tables else self._new_table(pairs)
        self._tables[pairs] = found
        if len(self._tables) > _KEPT:
            del self._tables[next(iter(self._tables))]
        return found

    def _new_table(self, pairs: Choice) -> "_Table | None":
        ranks = changed(self.ranks, pairs, self._parts)
        programs = self._programs(ranks)
        self.spent += 4 * sum(map(len, programs.ranks))
        try:
            if pairs:
                check(programs, memory=self._memory, costs=self._costs, operations=self._operations)
            numbered = [each for row in zip(programs.ranks, ranks, strict=True) for each in zip(*row, strict=True)]
            return _Table(rank_programs(programs, self._costs, self._operations), numbered, self._singles)
        except ScheduleError:
            if pairs:
                return None
            raise


@dataclass(frozen=True, slots=True)
class _Affected:
    action: Action
    parts: tuple[tuple[int, int], ...]  # the stage and microbatch of each


class _Singles:
    """Which microbatches are in an action, and how long it takes when some of them run as nano-batches.

    Worked out once for each action object: tables of different orders share most of them.
    """

    def __init__(self, costs: ActionCosts, parts: int) -> None:
        self._costs, self._parts = costs, parts
        self._affected: dict[int, _Affected] = {}  # by identity, which the entry keeps alive
        self._seconds: dict[tuple[int, tuple[bool, ...]], float] = {}

    def affected(self, action: Action) -> _Affected:
        """What in it may run as nano-batches; no parts where that is nothing."""
        found = self._affected.get(id(action))
        if found is None:
            singles = action.singles
            computing = all(single.kind in COMPUTE for single in singles)
            parts = tuple((single.stage, single.microbatch or 0) for single in singles) if computing else ()
            found = self._affected[id(action)] = _Affected(action, parts)
        return found

    def seconds(self, affected: _Affected, chosen: set[tuple[int, int]]) -> float:
        """How long it takes when these microbatches of stages run as nano-batches."""
        key = id(affected.action), tuple([place in chosen for place in affected.parts])
        found = self._seconds.get(key)
        if found is None:
            action = _in_parts(affected.action, chosen, self._parts)
            found = self._seconds[key] = self._costs.duration(action)
        return found


class _Table:
    """One order, with durations that depend on which microbatches run as nano-batches."""

    def __init__(self, programs: RankPrograms, numbered: Sequence[tuple[int, Action]], singles: _Singles) -> None:
        self._programs, self._singles = programs, singles
        own = programs.own
        occupying = [[n for n in row if programs.link[n] < 0] for row in programs.ranks]
        self._last = [row[-1] for row in occupying if row]
        self._last += [n for row in programs.ranks for n in row if programs.link[n] in own]
        self._busy = math.fsum(programs.durations[n] for row in occupying for n in row)
        self._affected: dict[tuple[int, int], dict[int, _Affected]] = {}
        self.size = sum(map(len, programs.ranks))
        for number, action in numbered:
            affected = singles.affected(action)
            for place in affected.parts:
                self._affected.setdefault(place, {})[number] = affected

    def simulated(self, split: Iterable[tuple[int, int]]) -> tuple[float, float]:
        """Makespan, and the seconds in which ranks are busy."""
        chosen = set(split)
        durations = list(self._programs.durations)
        busy = [self._busy]
        changed: dict[int, _Affected] = {}
        for place in chosen:
            changed |= self._affected.get(place, {})
        for number, affected in changed.items():
            seconds = self._singles.seconds(affected, chosen)
            busy.append(seconds - durations[number])
            durations[number] = seconds
        _, ends = run(replace(self._programs, durations=durations))
        return max([ends[n] for n in self._last], default=0.0), math.fsum(busy)


def _in_parts(action: Action, split: set[tuple[int, int]], parts: int) -> Action:
    """The action with the parts that are split running as nano-batches."""
    if action.parts:
        own = tuple(_in_parts(part, split, parts) for part in action.parts)
        return action if own == action.parts else replace(action, parts=own)
    if action.kind in COMPUTE and (action.stage, action.microbatch) in split and action.nano_batches == 1:
        return with_parts(action, parts)
    return action
