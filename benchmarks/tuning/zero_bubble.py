"""The heuristic of the zero-bubble authors (arXiv 2401.10241), beside the search, on its own problem.

One stage a rank, in order; F, I and W of every stage alike; a limit on memory as a multiple of what 1F1B holds. Written
from the paper's description: before the first backward as many forwards as the memory holds (or as fit before it);
then one forward and one backward in turn; a W where its rank would be idle for as long (or for any time), and where
only that makes room for a forward. All of its options are tried, and the best is taken.
"""

import itertools
from dataclasses import dataclass

from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.schedule_class import Schedule
from annopipe.tuning.layers import Layer
from annopipe.tuning.workload import Workload

__all__ = ["PROBLEMS", "heuristic_step", "problem"]

_NEVER = float("inf")

# F, I, W and the latency of a message: alike, and unequal ones.
PROBLEMS = tuple(
    (ranks, microbatches, times, limit)
    for ranks, microbatches in ((4, 8), (8, 24))
    for times in ((1.0, 1.0, 1.0, 0.0), (1.0, 0.98, 0.5, 0.03))
    for limit in (1.0, 1.5, 2.0)
)


@dataclass(frozen=True)
class Options:
    """What the heuristic may do one way or the other.

    Attributes:
        fill_first: as many forwards as the memory holds before the first backward, even if that waits.
        any_gap: a W where its rank would be idle, however short that is.
        backward_first: no turns: a backward whenever there is one.
    """

    fill_first: bool
    any_gap: bool
    backward_first: bool


def problem(ranks: int, microbatches: int, times: tuple[float, float, float, float], limit: float) -> Workload:
    """As a workload: a layer a stage; activations of 1, of which 1F1B holds one a rank."""
    forward, backward, weight, message = times
    layer = Layer(forward, backward, weight, activation=1.0)
    name = f"{ranks} ranks, {microbatches} microbatches, {'/'.join(map(str, times))}, {limit:g}x"
    return Workload((layer,) * ranks, ranks, microbatches, latency=message, memory=limit * ranks, name=name)


def heuristic_step(work: Workload) -> float:
    """The shortest step over all options, as the simulation has it.

    >>> heuristic_step(problem(4, 8, (1.0, 1.0, 1.0, 0.0), 1.0))
    27.0
    """
    layer, found = work.layers[0], []
    costs = table(F=layer.F, I=layer.I, W=layer.W, latency=work.latency)
    for flags in itertools.product((False, True), repeat=3):
        schedule = _Run(work, Options(*flags)).schedule()
        schedule.check(memory=work.memory)
        found.append(schedule.simulated(costs).makespan)
    return min(found)


class _Run:
    """One run: time goes on from decision to decision, and each rank that is free decides with what it knows."""

    def __init__(self, work: Workload, options: Options) -> None:
        self._work, self._options = work, options
        ranks, count = work.ranks, work.microbatches
        self._programs: list[list[str]] = [[] for _ in range(ranks)]
        self._free = [0.0] * ranks
        self._done = [{"F": 0, "I": 0, "W": 0} for _ in range(ranks)]
        # When each input arrives; infinite as long as that is not known.
        self._forward = [[0.0 if rank == 0 else _NEVER] * count for rank in range(ranks)]
        self._backward = [[_NEVER] * count for _ in range(ranks)]

    def schedule(self) -> Schedule:
        """The order that comes of it."""
        work, now = self._work, 0.0
        while any(done["W"] < work.microbatches for done in self._done):
            for rank in range(work.ranks):
                if self._free[rank] <= now:
                    kind = self._choice(rank, now)
                    if kind:
                        self._take(rank, kind, now)
            times = [*self._free, *itertools.chain(*self._forward, *self._backward)]
            now = min(time for time in times if now < time < _NEVER)
        return Schedule.of(placement.linear(work.ranks), work.microbatches, self._programs)

    def _choice(self, rank: int, now: float) -> str:
        done, count, options = self._done[rank], self._work.microbatches, self._options
        forward = self._forward[rank][done["F"]] if done["F"] < count else _NEVER
        backward = self._backward[rank][done["I"]] if done["I"] < count else _NEVER
        has_room = done["F"] - done["W"] + 1 <= (self._work.memory or _NEVER)
        waiting = done["I"] > done["W"]
        may_forward = forward <= now and has_room
        may_backward = backward <= now
        warm_up = done["I"] == 0 and options.fill_first
        forward_last = self._programs[rank][-1:] == [f"{rank}F{done['F'] - 1}"]
        forwards_turn = warm_up or not (options.backward_first or forward_last)
        if may_forward and (forwards_turn or not may_backward):
            return "F"
        if may_backward:
            return "I"
        if not waiting:
            return ""
        if forward <= now:  # only a W makes room for it
            return "W"
        gap = min(forward if has_room else _NEVER, backward) - now
        return "W" if options.any_gap or gap >= self._work.layers[0].W else ""

    def _take(self, rank: int, kind: str, now: float) -> None:
        layer, done = self._work.layers[0], self._done[rank]
        microbatch = done[kind]
        end = now + {"F": layer.F, "I": layer.I, "W": layer.W}[kind]
        done[kind] += 1
        self._free[rank] = end
        self._programs[rank].append(f"{rank}{kind}{microbatch}")
        arrival = end + self._work.latency
        if kind == "F" and rank + 1 < self._work.ranks:
            self._forward[rank + 1][microbatch] = arrival
        elif kind == "F":
            self._backward[rank][microbatch] = end
        elif kind == "I" and rank:
            self._backward[rank - 1][microbatch] = arrival
