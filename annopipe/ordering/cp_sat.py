"""Adapter to OR-tools' CP-SAT, an optional package: the order of a small problem with a proof, in whole ticks.

The model has one interval per step on the thread and one per transfer on its link; nothing overlaps on either, and a
step begins when the transfers that it needs are over. Launches of one link keep the sequence of their transfers.
Time is counted in ticks; with times rounded down, what is proved bounds every order from below.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from ortools.sat.python import cp_model

from annopipe.ordering.search.steps import Steps

__all__ = ["Solved", "solve"]


@dataclasses.dataclass(frozen=True)
class Solved:
    """What the solver found: an order of steps, its length and the bound in ticks; proven where the two are equal."""

    order: tuple[int, ...]
    ticks: int
    bound_ticks: int

    @property
    def proven(self) -> bool:
        """Whether no order takes fewer ticks."""
        return self.ticks <= self.bound_ticks


def solve(
    steps: Steps, tick: float, *, down: bool, hint: Sequence[int], seconds: float, workers: int, seed: int
) -> Solved:
    """The best order that is found within a time limit.

    Args:
        tick: seconds of a tick.
        down: round times down rather than up.
        hint: an order of steps to begin with.
    """
    rounded = math.floor if down else math.ceil

    def ticks(time: float) -> int:
        return rounded(time / tick + (1e-6 if down else -1e-6))  # an exact multiple stays one

    model, horizon = cp_model.CpModel(), 0
    thread = [ticks(time) for time in steps.seconds]
    moved = [ticks(time) for time in steps.transfer]
    horizon = sum(thread) + sum(moved)
    starts = [model.new_int_var(0, horizon, f"s{i}") for i in range(len(steps))]
    launches = [i for i in range(len(steps)) if steps.link[i] >= 0]
    carried = {i: model.new_int_var(0, horizon, f"t{i}") for i in launches}
    makespan = model.new_int_var(0, horizon, "makespan")
    on_thread = {i for i in range(len(steps)) if thread[i] or steps.needs[i]}
    for link in range(steps.links):
        own = [i for i in launches if steps.link[i] == link]
        model.add_no_overlap([model.new_fixed_size_interval_var(carried[i], moved[i], f"c{i}") for i in own])
        if any(thread[i] for i in own):
            on_thread.update(own)
            _keep_sequence(model, own, starts, carried, thread)
    # What has no length is not begun inside of another step either.
    model.add_no_overlap([model.new_fixed_size_interval_var(starts[i], thread[i], f"i{i}") for i in sorted(on_thread)])
    for i in range(len(steps)):
        for source in steps.before[i]:
            model.add(starts[i] >= starts[source] + thread[source])
        for launch in steps.needs[i]:
            model.add(starts[i] >= carried[launch] + moved[launch])
        model.add(makespan >= starts[i] + thread[i])
    for i in launches:
        model.add(carried[i] >= starts[i] + thread[i])
        model.add(makespan >= carried[i] + moved[i])
    model.minimize(makespan)
    _hint(model, steps, hint, thread, moved, starts, carried)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(tuple(hint), horizon, math.floor(solver.best_objective_bound))
    begun = [solver.value(start) for start in starts]
    moves = {i: solver.value(start) for i, start in carried.items()}
    order = _legal(steps, _keys(steps, thread, on_thread, begun, moves))
    return Solved(order, round(solver.objective_value), math.ceil(solver.best_objective_bound - 1e-6))


def _keys(
    steps: Steps, thread: Sequence[int], on_thread: AbstractSet[int], begun: Sequence[int], moves: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """What to sort steps by: launches as soon as they can be, in the sequence of their transfers."""
    issued, latest = list(begun), [0] * steps.links
    for i in sorted(moves, key=lambda i: (moves[i], begun[i], i)):
        if i not in on_thread:
            issued[i] = max((begun[source] + thread[source] for source in steps.before[i]), default=0)
        issued[i] = latest[steps.link[i]] = max(issued[i], latest[steps.link[i]])
    return [(issued[i], int(i not in moves), moves.get(i, 0), thread[i], i) for i in range(len(steps))]


def _keep_sequence(
    model: Any, own: Sequence[int], starts: Sequence[Any], carried: dict[int, Any], thread: Sequence[int]
) -> None:
    """Transfers of a link move in the sequence of their launches, which matters where launching takes time."""
    for one, other in itertools.combinations(own, 2):
        first = model.new_bool_var(f"{one} before {other}")
        model.add(starts[other] >= starts[one] + thread[one]).only_enforce_if(first)
        model.add(carried[other] >= carried[one]).only_enforce_if(first)
        model.add(starts[one] >= starts[other] + thread[other]).only_enforce_if(~first)
        model.add(carried[one] >= carried[other]).only_enforce_if(~first)


def _hint(
    model: Any,
    steps: Steps,
    order: Sequence[int],
    thread: Sequence[int],
    moved: Sequence[int],
    starts: Sequence[Any],
    carried: dict[int, Any],
) -> None:
    clock, free = 0, [0] * steps.links
    over: dict[int, int] = {}
    for i in order:
        clock = max([clock, *(over[launch] for launch in steps.needs[i])])
        model.add_hint(starts[i], clock)
        clock += thread[i]
        if i in carried:
            begun = max(clock, free[steps.link[i]])
            model.add_hint(carried[i], begun)
            over[i] = free[steps.link[i]] = begun + moved[i]


def _legal(steps: Steps, key: Sequence[Any]) -> tuple[int, ...]:
    """The steps by their key, each behind what must come before it where several have no length."""
    order: dict[int, None] = {}
    for i in sorted(range(len(steps)), key=lambda i: key[i]):
        _take(steps, i, order)
    return tuple(order)


def _take(steps: Steps, i: int, order: dict[int, None]) -> None:
    if i not in order:
        for source in steps.before[i]:
            _take(steps, source, order)
        order[i] = None
