"""Small instances of the suite and the optimum of their orders, proved by OR-tools' CP-SAT (extra ``optimal``).

The stages and the ranks that have them are those of the schedule that the search found; in which order the ranks do
their actions is free. Times are rounded down to ticks, so that what is proved holds for the real times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ortools.sat.python import cp_model

from annopipe.errors import ScheduleError
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.layers import Layer
from annopipe.tuning.reordering.problem import Problem
from annopipe.tuning.reordering.times import Times, times
from annopipe.tuning.tuner import tune
from annopipe.tuning.workload import Workload

__all__ = ["Optimum", "measured", "optimum", "small"]

_TICK = 0.05
_UNITS = 1_000  # of memory


@dataclass(frozen=True)
class Optimum:
    """What is proved of the orders of some stages: no step is shorter than the bound; proven where one is as short."""

    step: float
    bound: float

    @property
    def proven(self) -> bool:
        """Whether no order is shorter, up to a tick."""
        return self.step <= self.bound + _TICK


def small(work: Workload, *, ranks: int = 3, microbatches: int = 4) -> Workload:
    """The same kind of work on few ranks: of each sort of layer as few as keep the shares, memory in proportion.

    >>> layer = Layer(1.0, 1.0, 1.0, activation=1.0)
    >>> small(Workload((layer,) * 32, 8, 32, memory=20.0, name="tight"))
    Workload(tight: 12 layers, 3 ranks, 4 microbatches)
    """
    share = ranks / work.ranks
    memory = None if work.memory is None else work.memory * share
    speed = work.speed and (work.speed[0],) * (ranks - ranks // 2) + (work.speed[-1],) * (ranks // 2)
    towers = tuple(_fewer(tower, share) for tower in work.towers)
    return replace(
        work,
        layers=_fewer(work.layers, share),
        towers=towers,
        ranks=ranks,
        microbatches=microbatches,
        memory=memory,
        speed=speed,
    )


def _fewer(layers: Sequence[Layer], share: float) -> tuple[Layer, ...]:
    runs: list[list[Layer]] = []
    for layer in layers:
        if runs and runs[-1][0] == layer:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return tuple(layer for run in runs for layer in run[: max(1, round(len(run) * share))])


def optimum(work: Workload, problem: Problem, *, seconds: float, workers: int = 2) -> Optimum:
    """The optimum of a problem's orders, from its own as a start; within a time limit, else a bound."""
    given = times(problem, problem.start)
    if given is None:
        raise ScheduleError("the ranks of the schedule wait for each other: give one that can be run")
    model = _Model(problem, given)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    status = solver.solve(model.model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    step = min(given.makespan, solver.objective_value * _TICK) if found else given.makespan
    known = lower_bound(work)
    return Optimum(max(step, known), max(known, math.ceil(solver.best_objective_bound - 1e-6) * _TICK))


def measured(work: Workload, *, ranks: int, microbatches: int, effort: int, seconds: float) -> tuple[float, Optimum]:
    """The step that is found for a small instance of a workload, and the optimum of its orders."""
    instance = small(work, ranks=ranks, microbatches=microbatches)
    found = tune(instance, effort=effort, best=1)[0]
    problem = Problem.of(found.schedule, found.trial.costs(instance), instance.memory)
    return found.timeline.makespan, optimum(instance, problem, seconds=seconds)


class _Model:
    """One interval for each computation and each message; a rank, and a link, does one thing at a time."""

    def __init__(self, problem: Problem, given: Times) -> None:
        self.model: Any = cp_model.CpModel()
        self._problem, self._horizon = problem, math.ceil(given.makespan / _TICK) + 1
        self._ticks = {n: self._down(problem.durations[n]) for order in problem.start for n in order}
        self._begins = {n: self.model.new_int_var(0, self._horizon, f"b{n}") for n in self._ticks}
        for number, begin in self._begins.items():
            self.model.add_hint(begin, self._down(given.begins[number]))
        self._arrivals = self._messages()
        end = self.model.new_int_var(0, self._horizon, "end")
        for order in problem.start:
            self.model.add_no_overlap([self._interval(self._begins[n], self._ticks[n]) for n in order])
            for number in order:
                for need in problem.inputs[number]:
                    self.model.add(self._begins[number] >= self._arrivals.get(need, self._end(need)))
                self.model.add(end >= self._end(number))
        self._keep_memory()
        self.model.minimize(end)

    @staticmethod
    def _down(time: float) -> int:
        return math.floor(time / _TICK + 1e-6)

    def _interval(self, begin: Any, ticks: int) -> Any:
        return self.model.new_fixed_size_interval_var(begin, ticks, "")

    def _end(self, number: int) -> Any:
        return self._begins[number] + self._ticks[number] if number in self._begins else 0

    def _messages(self) -> dict[int, Any]:
        problem, found, on_link = self._problem, dict[int, Any](), dict[int, list[Any]]()
        for number in self._begins:
            for message in problem.sends[number]:
                ticks, line = self._down(problem.durations[message]), problem.link[message]
                begin = self.model.new_int_var(0, self._horizon, f"m{message}")
                self.model.add(begin >= self._end(number))
                on_link.setdefault(line, []).append(self._interval(begin, ticks))
                found[message] = begin + ticks + self._down(problem.latencies[line])
        for intervals in on_link.values():
            self.model.add_no_overlap(intervals)
        return found

    def _keep_memory(self) -> None:
        """An activation is there from the begin of the forward to the end of B; some of it to the end of I, or of W."""
        problem, block = self._problem, self._problem.numbering.block
        whole = {part: n for n, parts in problem.numbering.parts.items() if n in self._begins for part in parts}
        for order, room in zip(problem.start, problem.room, strict=True):
            if room == math.inf:
                continue
            held: list[tuple[Any, float]] = []
            singles = [single for n in order for single in problem.numbering.parts.get(n, (n,))]
            for forward in (single for single in singles if single < block):
                begin = self._begins[whole.get(forward, forward)]
                ends = [
                    (self._end(whole.get(n, n)), problem.gives[n])
                    for n in (forward + turn * block for turn in (1, 2, 3))
                    if whole.get(n, n) in self._begins
                ]
                last = ends[-1][0]
                # Where I gives back less than nothing, that much more is there from its end.
                held += [(self._held(begin, end), gives) for end, gives in ends[:-1] if gives > 0.0]
                held += [(self._held(end, last), -gives) for end, gives in ends[:-1] if gives < 0.0]
                early = sum(gives for _, gives in ends[:-1] if gives > 0.0)
                held.append((self._held(begin, last), problem.takes[forward] - early))
            sizes = [math.floor(size * _UNITS + 1e-6) for _, size in held]
            self.model.add_cumulative([interval for interval, _ in held], sizes, math.ceil(room * _UNITS))

    def _held(self, begin: Any, last: Any) -> Any:
        """From the begin of one action to the end of another."""
        end, size = (self.model.new_int_var(0, self._horizon, "") for _ in range(2))
        self.model.add(end == last)
        return self.model.new_interval_var(begin, size, end, "")
