"""Move actions to the latest places that they can have before the end of the step, then to the earliest ones.

One at a time, the last first and then the first first: everything else stays where it is in time, so that nothing can
get worse. What waited in the middle of the step for no good reason leaves room there, and others move into it: the
step becomes shorter, or differs. An action changes places with others of its rank where the memory allows it.
"""

import random
from dataclasses import dataclass, field

from annopipe.tuning.reordering.problem import Orders, Problem

__all__ = ["Plan", "Shifter"]

_ROUNDING = 1e-9
_NO_LIMIT = float("inf")


@dataclass(eq=False, repr=False)
class Plan:
    """Orders and when each computation begins, by number; shifting changes both."""

    orders: Orders
    begins: list[float]


@dataclass(frozen=True, eq=False, repr=False)
class _Links:
    """For each computation what it waits for, or what waits for it, with the time that passes in between."""

    before: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    after: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    rank_of: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> "_Links":
        found = cls()
        makers = {}
        for rank, order in enumerate(problem.start):
            for number in order:
                found.rank_of[number] = rank
                found.before[number], found.after[number] = [], []
                makers.update(dict.fromkeys(problem.sends[number], number))
        for number in found.rank_of:
            for need in problem.inputs[number]:
                on_way = problem.durations[need] + problem.latencies[problem.link[need]] if need in makers else 0.0
                found.before[number].append((makers.get(need, need), on_way))
                found.after[makers.get(need, need)].append((number, on_way))
        return found


class Shifter:
    """Shifts plans of one problem; `rng` and `noise` (a time) vary the sequence in which actions are moved."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._links = problem, _Links.of(problem)
        self._numbers = [*self._links.rank_of]
        self._change, self._most = problem.change, problem.most

    def later(self, plan: Plan, end: float, rng: random.Random, noise: float) -> None:
        """Move everything to the latest place before an end, then all times back so that the first begins at 0."""
        begins, durations, after = plan.begins, self._problem.durations, self._links.after
        vary = rng.random
        for number in sorted(self._numbers, key=lambda n: -begins[n] - durations[n] - noise * vary()):
            due = end
            for other, on_way in after[number]:
                due = min(due, begins[other] - on_way)
            if due > begins[number] + durations[number] + _ROUNDING:
                self._later(plan, number, due, end)
        first = min(begins[order[0]] for order in plan.orders if order)
        for number in self._numbers:
            begins[number] -= first

    def earlier(self, plan: Plan, rng: random.Random, noise: float) -> None:
        """Move everything to the earliest place."""
        begins, durations, before = plan.begins, self._problem.durations, self._links.before
        vary = rng.random
        for number in sorted(self._numbers, key=lambda n: (begins[n] + noise * vary(), durations[n])):
            ready = 0.0
            for other, on_way in before[number]:
                at = begins[other] + durations[other] + on_way
                ready = max(ready, at)
            if ready < begins[number] - _ROUNDING:
                self._earlier(plan, number, ready)

    def _earlier(self, plan: Plan, number: int, ready: float) -> None:
        order, place, held = self._place(plan, number, taking=True)
        begins, durations, most = plan.begins, self._problem.durations, self._most
        room = self._problem.room[self._links.rank_of[number]] - most[number]
        own, best, target = durations[number], begins[number], place
        gap_end, step = best + own, place
        while True:
            previous = order[step - 1] if step else -1
            free = begins[previous] + durations[previous] if step else 0.0
            at = max(free, ready)
            if at + own <= gap_end + _ROUNDING and at < best - _ROUNDING:
                best, target = at, step
            if not step or free <= ready + _ROUNDING:
                break
            if held is not None:  # with this action before it, does the previous one still have room?
                held -= self._change[previous]
                if held + most[previous] > room:
                    break
            gap_end, step = begins[previous], step - 1
        self._put(plan, order, place, target, best)

    def _later(self, plan: Plan, number: int, due: float, end: float) -> None:
        order, place, held = self._place(plan, number, taking=False)
        begins, durations, most = plan.begins, self._problem.durations, self._most
        room = self._problem.room[self._links.rank_of[number]]
        own, best, target = durations[number], begins[number], place
        gap_begin, step = best, place
        if held is not None:
            held += self._problem.takes[number]
        while True:
            following = order[step + 1] if step + 1 < len(order) else -1
            free = begins[following] if following >= 0 else end
            at = min(free, due) - own
            if at >= gap_begin - _ROUNDING and at > best + _ROUNDING:
                best, target = at, step
            if following < 0 or free >= due - _ROUNDING:
                break
            if held is not None:  # as long as this action has given nothing back, does the following one have room?
                if held + most[following] > room:
                    break
                held += self._change[following]
            gap_begin, step = begins[following] + durations[following], step + 1
        self._put(plan, order, place, target, best)

    def _place(self, plan: Plan, number: int, *, taking: bool) -> tuple[list[int], int, float | None]:
        """The order of an action's rank, its place there, and what is held before it where the memory matters."""
        rank = self._links.rank_of[number]
        order = plan.orders[rank]
        place = order.index(number)
        matters = self._most[number] if taking else self._problem.gives[number]
        if self._problem.room[rank] == _NO_LIMIT or matters <= 0.0:
            return order, place, None
        return order, place, sum(map(self._change.__getitem__, order[:place]))

    @staticmethod
    def _put(plan: Plan, order: list[int], place: int, target: int, begin: float) -> None:
        if target != place:
            order.insert(target, order.pop(place))
        plan.begins[order[target]] = begin
