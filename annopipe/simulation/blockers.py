"""Finds the task that stands in the way of a transfer: each function answers one question about one launch or wait.

>>> from annopipe.simulation import Task, run
>>> trace = run([
...     Task("attention", "compute", 1.0),
...     Task("combine", "launch", 4.0),
...     Task("experts", "compute", 1.0),
...     Task("dispatch", "launch", 2.0, after=(0,)),
...     Task("wait", "wait", launch=3),
...     Task("item", "host", 0.1, after=(4,)),
... ]).trace
>>> source(trace, 3), queued_behind(trace, 3), issued_behind(trace, 3, ready=1.0), host_reader(trace, 4)
(Source(ready=1.0, position=0), 1, 2, 5)
"""

from dataclasses import dataclass

from annopipe.simulation.trace import Trace, Transfer

__all__ = ["Source", "host_reader", "issued_behind", "queued_behind", "shares_with", "source"]


@dataclass(frozen=True, slots=True)
class Source:
    """When everything that a task needs was there, and the position of what came last; -1 when it needs nothing."""

    ready: float
    position: int


def source(trace: Trace, position: int) -> Source:
    """What a launch or a host read had to wait for: a computation, a host task, or a transfer (by its launch).

    Looks through tasks that took no time, and through waits to the transfer: a wait that did not block says when the
    thread asked, not when the result was there.
    """
    found = Source(0.0, -1)
    seen: set[int] = set()
    ahead = list(trace.tasks[position].after)
    while ahead:
        needed = ahead.pop()
        if needed in seen:
            continue
        seen.add(needed)
        task = trace.tasks[needed]
        if task.kind == "wait":
            found = max(found, Source(trace.transfers[task.launch].end, task.launch), key=_last)
        elif trace.ends[needed] > trace.starts[needed]:
            found = max(found, Source(trace.ends[needed], needed), key=_last)
        else:
            ahead.extend(task.after)
    return found


def _last(found: Source) -> tuple[float, int]:
    return found.ready, found.position


def queued_behind(trace: Trace, launch: int) -> int:
    """The transfer whose end let this one start."""
    queue, start = trace.tasks[launch].queue, trace.transfers[launch].start
    return max(
        p
        for p, other in trace.transfers.items()
        if other.end == start and trace.tasks[p].queue == queue and p != launch
    )


def shares_with(trace: Trace, launch: int) -> int:
    """The transfer that was on the same link together with this one longest."""
    return max(
        (p for p in trace.transfers if p != launch and _same_link(trace, p, launch)),
        key=lambda p: (_together(trace, p, launch), -p),
    )


def issued_behind(trace: Trace, launch: int, ready: float) -> int:
    """Of the tasks that ran after the launch was ready and before it was issued, the one that took longest."""
    position = launch - 1
    longest, seconds = position, 0.0
    while position >= 0 and trace.ends[position] > ready:
        taken = trace.ends[position] - max(ready, trace.starts[position])
        if taken > seconds:
            longest, seconds = position, taken
        position -= 1
    return longest


def host_reader(trace: Trace, wait: int) -> int:
    """The host task right behind a wait that reads what arrived, -1 if there is none.

    Right behind: between them are only computations that need the wait too.
    """
    needs = {wait}
    for position in range(wait + 1, len(trace.tasks)):
        task = trace.tasks[position]
        if task.kind in ("launch", "wait") or needs.isdisjoint(task.after):
            return -1
        if task.kind == "host":
            return position
        needs.add(position)
    return -1


def _same_link(trace: Trace, one: int, other: int) -> bool:
    return trace.network.shared_link or trace.tasks[one].queue == trace.tasks[other].queue


def _together(trace: Trace, one: int, other: int) -> float:
    (a, b), (c, d) = (_on_link(trace, p, trace.transfers[p]) for p in (one, other))
    return min(b, d) - max(a, c)


def _on_link(trace: Trace, position: int, transfer: Transfer) -> tuple[float, float]:
    return transfer.start + trace.tasks[position].latency, transfer.end
