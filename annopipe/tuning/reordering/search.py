"""Shorter orders: shift everything later and earlier again, each time in a somewhat different sequence.

Where that finds nothing any more, the orders are built anew, somewhat different, and shifted from there.
"""

import random
from dataclasses import dataclass

from annopipe.errors import ScheduleError
from annopipe.tuning.reordering.problem import Orders, Problem
from annopipe.tuning.reordering.rebuilding import rebuilt
from annopipe.tuning.reordering.shifting import Plan, Shifter
from annopipe.tuning.reordering.times import Times, times

__all__ = ["Shortened", "shortened"]

_SHAKES, _SLACKS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (-1.0, 0.0, 0.5, 1.0, 2.0, 4.0)  # in mean durations
_NOISES = (0.0, 0.3, 1.0, 1.0, 3.0, 8.0)  # in mean durations of an action
_WORSE, _WORSE_BASE = 0.02, 0.05  # how often something longer is gone on from
_PATIENCE = 20  # rounds without anything better, before orders are built anew
_AFTER = 4  # rounds that these are shifted for
_BUILDS = 5  # until the memory leaves a way
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Shortened:
    """Orders, how long their step is, and the effort: how many actions were moved or simulated."""

    orders: Orders
    makespan: float
    effort: int


def shortened(problem: Problem, *, seed: int, effort: int, enough: float = 0.0) -> Shortened:
    """The shortest orders that are met within an effort; never longer than those that the problem starts from.

    Args:
        problem: the orders to begin with, and all that matters of them.
        seed: of the sequences in which actions are moved.
        effort: how many actions may be moved or simulated; one round is made in any case.
        enough: a makespan that cannot be beaten.

    Raises ScheduleError when the problem's own orders cannot finish.

    >>> from annopipe.scheduling.action_costs import table
    >>> from annopipe.scheduling.library import schedule
    >>> problem = Problem.of(schedule("1f1b", ranks=4, microbatches=8), table(F=1.0, I=1.0, W=1.0))
    >>> times(problem, problem.start).makespan, shortened(problem, seed=0, effort=20_000).makespan
    (30.0, 27.0)
    """
    found = times(problem, problem.start)
    if found is None:
        raise ScheduleError("the ranks of the schedule wait for each other: give one that can be run")
    rng, shifter = random.Random(seed), Shifter(problem)
    count = sum(map(len, problem.start))
    spent = since = 0
    mean = sum(problem.durations[number] for order in problem.start for number in order) / max(1, count)
    best = base = now = _Order(problem.start, found)
    while best.makespan > enough * (1 + _ROUNDING) and spent < effort:
        plan = Plan([list(order) for order in now.orders], list(now.times.begins))
        shifter.later(plan, now.makespan, rng, mean * rng.choice(_NOISES))
        shifter.earlier(plan, rng, mean * rng.choice(_NOISES))
        shifted, spent, since = _Order.of(problem, plan.orders), spent + 3 * count, since + 1
        if shifted is not None and _is_taken(shifted, now, rng, _WORSE):
            now = shifted
            if now.makespan < best.makespan - _ROUNDING * best.makespan:
                best, base, since = now, now, 0
        if since >= _PATIENCE:
            since = _PATIENCE - _AFTER
            base = now if _is_taken(now, base, rng, _WORSE_BASE) else base
            now, builds = _built_anew(problem, base, rng, mean)
            spent += builds * count
    return Shortened(best.orders, best.makespan, spent)


@dataclass(frozen=True, slots=True)
class _Order:
    orders: Orders
    times: Times

    @classmethod
    def of(cls, problem: Problem, orders: Orders | None) -> "_Order | None":
        found = None if orders is None else times(problem, orders)
        return None if orders is None or found is None else cls(orders, found)

    @property
    def makespan(self) -> float:
        return self.times.makespan


def _built_anew(problem: Problem, base: _Order, rng: random.Random, mean: float) -> tuple[_Order, int]:
    """Orders close to others, or these where the memory leaves no way; and how many were built."""
    for builds in range(1, _BUILDS + 1):
        noise, slack = mean * rng.choice(_SHAKES), mean * rng.choice(_SLACKS)
        due = [begin + noise * rng.random() for begin in base.times.begins]
        anew = _Order.of(problem, rebuilt(problem, due, slack))
        if anew is not None:
            return anew, builds
    return base, _BUILDS


def _is_taken(found: _Order, now: _Order, rng: random.Random, worse: float) -> bool:
    return found.makespan <= now.makespan * (1 + _ROUNDING) or rng.random() < worse
