"""The network side of the simulation: in-order queues whose transfers move over links.

Nothing new can arrive while the issuing thread is blocked, so a network is advanced lazily: up to the moment of the
next launch, or up to the end of the transfer that is waited for.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from annopipe.simulation.tasks import Network, Task

__all__ = ["Carrier", "FluidLinks", "OwnLinks", "carrier"]


class Carrier(Protocol):
    """Carries transfers; a transfer is known by the position of its launch."""

    starts: dict[int, float]
    ends: dict[int, float]

    def enter(self, position: int, task: Task, at: float) -> None:
        """Put a transfer into its queue at time `at`; times never decrease from call to call."""

    def finish(self, position: int) -> float:
        """The time at which this transfer ends, given that nothing arrives before that."""

    def drain(self) -> None:
        """Finish everything that is in a queue."""

    def idle_from(self, by: float) -> float:
        """When the last transfer ends, given that nothing arrives before `by`; any time from `by` on if none does."""


def carrier(tasks: Sequence[Task], network: Network) -> Carrier:
    """The cheapest carrier that is exact for this program on this network.

    >>> two_queues = [Task("a", "launch", 2.0, queue="ep"), Task("b", "launch", 2.0, queue="dp")]
    >>> network = carrier(two_queues, Network())
    >>> for position, task in enumerate(two_queues):
    ...     network.enter(position, task, at=0.0)
    >>> network.finish(0)
    4.0
    """
    queues = {task.queue for task in tasks if task.kind == "launch"}
    alone = network.in_flight == 1 and (len(queues) < 2 or not network.shared_link)
    return OwnLinks() if alone else FluidLinks(network)


class OwnLinks:
    """Each queue moves one transfer at a time over a link that no other queue uses: nothing ever shares."""

    __slots__ = ("_free", "ends", "starts")

    def __init__(self) -> None:
        self.starts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self._free: dict[str, float] = {}  # when each queue's last transfer ends

    def enter(self, position: int, task: Task, at: float) -> None:
        """Start when the queue's previous transfer ends."""
        start = max(at, self._free.get(task.queue, 0.0))
        self.starts[position] = start
        self.ends[position] = self._free[task.queue] = start + task.duration

    def finish(self, position: int) -> float:
        """The end is known from the start on."""
        return self.ends[position]

    def drain(self) -> None:
        """Every end is known already."""

    def idle_from(self, by: float) -> float:  # noqa: ARG002 - ends are known, however far ahead
        """The end of the last transfer."""
        return max(self._free.values(), default=0.0)


class FluidLinks:
    """Queues with several transfers in flight, or several queues on one link: fluid processor sharing."""

    __slots__ = ("_links", "_network", "_used", "ends", "starts")

    def __init__(self, network: Network) -> None:
        self.starts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self._network = network
        self._links: dict[str, _Link] = {}
        self._used: dict[int, _Link] = {}

    def enter(self, position: int, task: Task, at: float) -> None:
        """Queue the transfer on its link."""
        key = "" if self._network.shared_link else task.queue
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link(self._network.in_flight, self.starts, self.ends)
        self._used[position] = link
        link.enter(position, task, at)

    def finish(self, position: int) -> float:
        """Advance the transfer's link to the end of the transfer."""
        link = self._used[position]
        while position not in self.ends:
            link.step()
        return self.ends[position]

    def drain(self) -> None:
        """Advance every link until it is empty."""
        for link in self._links.values():
            while link.next_event() is not None:
                link.step()

    def idle_from(self, by: float) -> float:
        """Advance every link up to `by`, and see whether any still moves something then."""
        idle = 0.0
        for link in self._links.values():
            link.advance(by)
            if link.next_event() is not None:
                return by
            idle = max(idle, link.last_end)
        return idle


@dataclass(slots=True)
class _Queue:
    busy: int = 0
    waiting: deque[tuple[int, Task]] = field(default_factory=deque)


class _Link:
    """One link in virtual time: its share is the link work that each moving transfer received since the link was idle.

    All moving transfers receive equally, so a transfer that joins at share s with work w ends when the share is s + w,
    whoever else comes and goes. Share and time are stored at the last change of the number of moving transfers, so
    rounding does not add up over events; a transfer that never shared ends at start + duration, to the last bit.
    """

    __slots__ = (
        "_alone",
        "_in_flight",
        "_moving",
        "_queues",
        "_share",
        "_starting",
        "_tasks",
        "_time",
        "ends",
        "last_end",
        "starts",
    )

    def __init__(self, in_flight: int, starts: dict[int, float], ends: dict[int, float]) -> None:
        self.starts, self.ends = starts, ends
        self._in_flight = in_flight
        self._queues: dict[str, _Queue] = {}
        self._tasks: dict[int, Task] = {}
        self._starting: list[tuple[float, int]] = []  # heap: (time at which the latency is over, position)
        self._moving: list[tuple[float, int]] = []  # heap: (share at which it ends, position)
        self._time = 0.0
        self._share = 0.0
        self._alone = -1  # the transfer that moves and has not shared the link so far
        self.last_end = 0.0

    def enter(self, position: int, task: Task, at: float) -> None:
        self.advance(at)
        queue = self._queues.setdefault(task.queue, _Queue())
        if queue.busy < self._in_flight:
            self._start(position, task, at, queue)
        else:
            queue.waiting.append((position, task))

    def advance(self, by: float) -> None:
        """Let everything happen that happens up to a time."""
        event = self.next_event()
        while event is not None and event <= by:
            self.step()
            event = self.next_event()

    def next_event(self) -> float | None:
        """When a latency is over or a transfer ends next; None when the link is empty."""
        if self._moving:
            end = self._next_end()
            return min(end, self._starting[0][0]) if self._starting else end
        return self._starting[0][0] if self._starting else None

    def step(self) -> None:
        """Let the next event happen; of two at the same time the end of a transfer comes first."""
        if self._moving and (not self._starting or self._next_end() <= self._starting[0][0]):
            end = self._next_end()
            self._time = end
            self._share, position = heapq.heappop(self._moving)
            self._alone = -1
            self._end(position, end)
            return
        at, position = heapq.heappop(self._starting)
        task = self._tasks[position]
        if task.latency == task.duration:
            self._end(position, at)
        else:
            self._move(position, task, at)

    def _next_end(self) -> float:
        share, position = self._moving[0]
        if position == self._alone:
            return self.starts[position] + self._tasks[position].duration
        # Rounding may put the end a hair before the last change; time does not run backwards.
        return self._time + max(0.0, share - self._share) * len(self._moving)

    def _start(self, position: int, task: Task, at: float, queue: _Queue) -> None:
        queue.busy += 1
        self.starts[position] = at
        self._tasks[position] = task
        heapq.heappush(self._starting, (at + task.latency, position))

    def _move(self, position: int, task: Task, at: float) -> None:
        if self._moving:
            self._share += (at - self._time) / len(self._moving)
            self._alone = -1
        else:
            self._share = 0.0
            self._alone = position
        self._time = at
        heapq.heappush(self._moving, (self._share + (task.duration - task.latency), position))

    def _end(self, position: int, at: float) -> None:
        self.ends[position] = self.last_end = at
        queue = self._queues[self._tasks.pop(position).queue]
        queue.busy -= 1
        if queue.waiting:
            following, task = queue.waiting.popleft()
            self._start(following, task, at, queue)
