"""Which tasks need which transfers, answered for all stalls of a trace in one sweep."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annopipe.simulation.trace import Trace

__all__ = ["Dependence", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Work that could have run during a stall: how many seconds, and where it begins: a task or a launch."""

    seconds: float
    first: int


class Dependence:
    """Needs between tasks and transfers: directly, or through other tasks.

    Every task has an integer with one bit per stall, carried along from a task to those that use its result.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("a", "launch", 2.0), Task("wait", "wait", launch=0), Task("mm", "compute", 1.0)]
    >>> needs = Dependence(run(program).trace)
    >>> needs.work_beside(0), needs.by_all_later(0)
    (Work(seconds=1.0, first=2), False)
    """

    __slots__ = ("_all_blocked", "_all_users", "_blocked", "_trace", "_waits")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._waits = trace.stalled
        self._blocked = _carry(trace, _in_flight(trace, self._waits))
        self._all_blocked = _shared_by_later_work(trace, self._blocked)
        users = _carry(trace, {trace.tasks[wait].launch: 1 << bit for bit, wait in enumerate(self._waits)})
        self._all_users = _shared_by_later_work(trace, users)

    def by_all_later(self, stall: int) -> bool:
        """Whether every task after the launch of this stall that takes time on the thread needs its transfer."""
        launch = self._trace.tasks[self._waits[stall]].launch
        return bool(self._all_users[launch + 1] >> stall & 1)

    def work_beside(self, stall: int) -> Work | None:
        """Work that comes after the wait, although another order could have put it before.

        It needs no transfer that was launched before the wait and unfinished when the stall began; a transfer that is
        launched only after the wait does not excuse it, for another order could have launched that earlier too. Only as
        much as fits into the stall is counted. None when there is none.
        """
        wait = self._waits[stall]
        if self._all_blocked[wait + 1] >> stall & 1:
            return None
        starts, ends = self._trace.starts, self._trace.ends
        limit = ends[wait] - starts[wait]
        total, first = 0.0, -1
        for position in range(wait + 1, len(starts)):
            kind = self._trace.tasks[position].kind
            seconds = 0.0 if kind == "wait" else ends[position] - starts[position]
            if self._blocked[position] >> stall & 1 or not (seconds or kind == "launch"):
                continue
            if first < 0:
                first = position
            total += seconds
            if total >= limit:
                break
        return Work(min(total, limit), first)


def _in_flight(trace: Trace, stalled: Sequence[int]) -> dict[int, int]:
    """For each wait the stalls that its transfer had been launched before, and that began while it was unfinished."""
    begins = [trace.starts[wait] for wait in stalled]
    found = {}
    for position, task in enumerate(trace.tasks):
        if task.kind == "wait":
            # Stalls are numbered in order of position and of time, so these are neighbours.
            first = bisect_left(stalled, task.launch)
            last = bisect_left(begins, trace.transfers[task.launch].end)
            if last > first:
                found[position] = (1 << last) - (1 << first)
    return found


def _carry(trace: Trace, seeds: Mapping[int, int]) -> list[int]:
    """For each task its own bits and those of all tasks whose results it uses."""
    bits: list[int] = []
    for position, task in enumerate(trace.tasks):
        mask = seeds.get(position, 0)
        for needed in task.after:
            mask |= bits[needed]
        if task.kind == "wait":
            mask |= bits[task.launch]
        bits.append(mask)
    return bits


def _shared_by_later_work(trace: Trace, bits: list[int]) -> list[int]:
    """For each position the bits that all tasks from there on have; waits and tasks that take no time do not count."""
    shared = [-1]  # every bit
    for position in range(len(bits) - 1, -1, -1):
        works = trace.tasks[position].kind != "wait" and trace.ends[position] > trace.starts[position]
        shared.append(shared[-1] & bits[position] if works else shared[-1])
    shared.reverse()
    return shared
