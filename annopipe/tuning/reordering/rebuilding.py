"""Build orders anew: every rank takes what is due, close to when it began before, as far as the memory allows it.

Where the memory is tight, no action can be moved alone, and shifting stays where it is. Here all ranks decide anew
from the begin of the step, and nothing starts long before its turn, so that a forward does not take the memory that a
backward needs.
"""

import math
from collections.abc import Sequence

from annopipe.tuning.reordering.problem import Orders, Problem

__all__ = ["rebuilt"]

_ROUNDING = 1e-9
_Choice = tuple[float, float, int]  # when what is chosen ends, when it begins, its number
_NOTHING: _Choice = (math.inf, math.inf, -1)


def rebuilt(problem: Problem, due: Sequence[float], slack: float) -> Orders | None:
    """Orders in which nothing begins more than `slack` before it is due; None where the memory leaves no way on.

    Args:
        problem: whose orders.
        due: for each computation, by number, when it should begin; what is due earlier is taken first.
        slack: a time.

    >>> from annopipe.scheduling.action_costs import table
    >>> from annopipe.scheduling.library import schedule
    >>> from annopipe.tuning.reordering.times import times
    >>> problem = Problem.of(schedule("1f1b", ranks=2, microbatches=2), table(F=1.0, I=1.0, W=1.0))
    >>> rebuilt(problem, times(problem, problem.start).begins, slack=0.0) == problem.start
    True
    """
    return _Building(problem, due, slack).orders()


class _Building:
    def __init__(self, problem: Problem, due: Sequence[float], slack: float) -> None:
        self._problem, self._due, self._slack = problem, due, slack
        self._orders: Orders = [[] for _ in problem.start]
        self._clock, self._held = [0.0] * len(problem.start), [0.0] * len(problem.start)
        self._free = [0.0] * len(problem.latencies)
        self._rank_of = {number: rank for rank, order in enumerate(problem.start) for number in order}
        self._waits = {number: len(problem.inputs[number]) for number in self._rank_of}
        self._after: dict[int, list[int]] = {}
        for number in self._rank_of:
            for need in problem.inputs[number]:
                self._after.setdefault(need, []).append(number)
        self._inputs_at = dict.fromkeys(self._rank_of, 0.0)
        self._ready: list[list[int]] = [[n for n in order if not self._waits[n]] for order in problem.start]

    def orders(self) -> Orders | None:
        """All actions, one after the other: of the ranks' choices the one that ends first."""
        choices = [self._choice(rank) for rank in range(len(self._ready))]
        for _ in self._rank_of:
            rank = choices.index(min(choices))
            _, begin, number = choices[rank]
            if number < 0:
                return None
            for changed in self._take(rank, begin, number):
                choices[changed] = self._choice(changed)
        return self._orders

    def _choice(self, rank: int) -> _Choice:
        """What a rank does next: of what can begin before anything could end, what is due first."""
        problem, clock = self._problem, self._clock[rank]
        room = problem.room[rank] - self._held[rank]
        able = []
        for number in self._ready[rank]:
            if problem.most[number] <= room:
                begin = max(clock, self._inputs_at[number], self._due[number] - self._slack)
                able.append((begin, number))
        if not able:
            return _NOTHING
        end = min([begin + problem.durations[number] for begin, number in able])
        _, number, begin = min(
            [
                (self._due[number], number, begin)
                for begin, number in able
                if begin < end - _ROUNDING or begin + problem.durations[number] <= end
            ]
        )
        return begin + problem.durations[number], begin, number

    def _take(self, rank: int, begin: float, number: int) -> set[int]:
        """Let a rank do an action; the ranks whose choice may differ now."""
        problem, changed = self._problem, {rank}
        end = self._clock[rank] = begin + problem.durations[number]
        self._held[rank] += problem.change[number]
        self._ready[rank].remove(number)
        self._orders[rank].append(number)
        changed |= self._arrived(number, end)
        for message in problem.sends[number]:
            line = problem.link[message]
            self._free[line] = sent = max(self._free[line], end) + problem.durations[message]
            changed |= self._arrived(message, sent + problem.latencies[line])
        return changed

    def _arrived(self, need: int, at: float) -> set[int]:
        changed = set()
        for number in self._after.get(need, ()):
            self._waits[number] -= 1
            self._inputs_at[number] = max(self._inputs_at[number], at)
            if not self._waits[number]:
                self._ready[self._rank_of[number]].append(number)
                changed.add(self._rank_of[number])
        return changed
