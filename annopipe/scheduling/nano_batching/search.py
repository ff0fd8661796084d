"""Choose changes of a schedule: by group, then one by one, as long as the simulated step gets better and time is left.

Better is a shorter step; of steps that are equally long, the one in which ranks are busy for less time, because more
communication is hidden; and of these the one with fewer changes. The same schedule and costs give the same choice.
"""

from collections.abc import Iterable, Sequence

from annopipe.scheduling.nano_batching.candidates import Group, Pair, Unit
from annopipe.scheduling.nano_batching.evaluation import Choice, Evaluator, Score

__all__ = ["Search"]

_ROUNDING = 1e-9
_SWEEPS = 3
_NOTHING: Choice = frozenset()


class Search:
    """The search for one schedule.

    Attributes:
        plain: the score without changes.
        best, score: the best choice so far, and its score.
    """

    def __init__(self, evaluator: Evaluator, groups: Sequence[Group], plain: Score, effort: int) -> None:
        self._evaluator, self._groups, self._effort = evaluator, groups, effort
        self.plain, self.score, self.best = plain, plain, _NOTHING
        self._tolerance = _ROUNDING * plain.makespan
        self.alone = self._run()

    @property
    def pays(self) -> bool:
        """Whether the best choice makes the step shorter."""
        return self.score.makespan < self.plain.makespan - self._tolerance

    def of_choice(self, choice: Choice) -> Score | None:
        """The score of a choice; None where it cannot run, or no time is left to try it."""
        return self._evaluator.score(choice) if self._has_time else None

    def difference(self, score: Score, other: Score) -> float:
        """How much longer the step of one score is; exactly 0 for what is only rounding."""
        found = score.makespan - other.makespan
        return found if abs(found) > self._tolerance else 0.0

    @property
    def _has_time(self) -> bool:
        return self._evaluator.spent < self._effort

    def _run(self) -> list[Score | None]:
        """Search; returns the score of each group alone."""
        for start in _starts(self._groups):
            self._consider(_with(_NOTHING, start))
        alone = []
        for group in self._groups:
            choice = _with(_NOTHING, group.units)
            self._consider(choice)
            alone.append(self.of_choice(choice))
        for _ in range(_SWEEPS):
            if not self._sweep([group.units for group in self._groups]):
                break
        for _ in range(_SWEEPS):
            if not self._sweep([(unit,) for group in self._groups for unit in group.units]):
                break
        return alone

    def _sweep(self, sets: Iterable[Sequence[Unit]]) -> bool:
        """Put each set of changes in, or take it back, if that is better; whether anything was."""
        better = False
        for units in sets:
            if not self._has_time:
                break
            better |= self._consider(_with(self.best, units))
            better |= self._consider(self.best - frozenset(units))
        return better

    def _consider(self, choice: Choice) -> bool:
        if choice == self.best or not self._has_time:
            return False
        score = self._evaluator.score(choice)
        if score is None or not self._is_better(score):
            return False
        self.best, self.score = choice, score
        return True

    def _is_better(self, score: Score) -> bool:
        for new, old in ((score.makespan, self.score.makespan), (score.busy, self.score.busy)):
            if abs(new - old) > self._tolerance:
                return new < old
        return score.changes < self.score.changes


def _starts(groups: Sequence[Group]) -> list[list[Unit]]:
    """All changes of a sort, in all phases and in each."""
    found: dict[tuple[str, ...], list[Unit]] = {}
    for group in groups:
        for key in ((group.change,), (group.change, group.phase)):
            found.setdefault(key, []).extend(group.units)
    return list(found.values())


def _with(choice: Choice, units: Iterable[Unit]) -> Choice:
    """The choice with these changes, and without what would run one of their actions together with another."""
    added = frozenset(units)
    taken = {step for unit in added for step in _steps(unit)}
    return added.union(unit for unit in choice if unit in added or taken.isdisjoint(_steps(unit)))


def _steps(unit: Unit) -> list[tuple[int, int]]:
    return [(unit.rank, unit.first), (unit.rank, unit.second)] if isinstance(unit, Pair) else []
