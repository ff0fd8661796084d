"""Shorter orders: shift everything later and earlier again, each time in a somewhat different sequence."""

import random
from dataclasses import dataclass

from annopipe.errors import ScheduleError
from annopipe.tuning.reordering.problem import Orders, Problem
from annopipe.tuning.reordering.shifting import Plan, Shifter
from annopipe.tuning.reordering.times import Times, times

__all__ = ["Shortened", "shortened"]

_NOISES = (0.0, 0.3, 1.0, 1.0, 3.0, 8.0)  # in mean durations of an action
_WORSE = 0.02  # how often something longer is gone on from
_PATIENCE = 60  # rounds without anything better, before it starts from the best again
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
    spent, since = count, 0
    mean = sum(problem.durations[number] for order in problem.start for number in order) / max(1, count)
    now, orders = found, problem.start
    best, best_orders = found, problem.start
    while best.makespan > enough * (1 + _ROUNDING):
        plan = Plan([list(order) for order in orders], list(now.begins))
        shifter.later(plan, now.makespan, rng, mean * rng.choice(_NOISES))
        shifter.earlier(plan, rng, mean * rng.choice(_NOISES))
        found, spent, since = times(problem, plan.orders), spent + 3 * count, since + 1
        if found is not None and _is_taken(found, now, rng):
            now, orders = found, plan.orders
            if now.makespan < best.makespan - _ROUNDING * best.makespan:
                best, best_orders, since = now, orders, 0
        if since >= _PATIENCE:
            now, orders, since = best, best_orders, 0
        if spent >= effort:
            break
    return Shortened(best_orders, best.makespan, spent)


def _is_taken(found: Times, now: Times, rng: random.Random) -> bool:
    return found.makespan <= now.makespan * (1 + _ROUNDING) or rng.random() < _WORSE
