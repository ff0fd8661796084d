"""A slow, obvious simulator: exact fractions, all state in one place, one step from event to event.

It shares no idea with the one under test: no virtual time, no heaps, no lazy network. At each moment it lets
everything happen that can happen now, then finds the nearest moment at which something changes, and moves all
remaining work there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from annopipe.simulation import Network, Task

Moment = Fraction


@dataclass
class Moving:
    """One transfer and what is left of it."""

    queue: str
    latency: Fraction
    work: Fraction
    start: Moment | None = None
    end: Moment | None = None

    @property
    def active(self) -> bool:
        return self.start is not None and self.end is None


@dataclass
class World:
    tasks: Sequence[Task]
    network: Network
    now: Moment = Fraction(0)
    next_task: int = 0
    running: int | None = None  # the task that occupies the thread
    left: Fraction = Fraction(0)  # what is left of it, at full speed
    transfers: dict[int, Moving] = field(default_factory=dict)
    starts: dict[int, Moment] = field(default_factory=dict)
    ends: dict[int, Moment] = field(default_factory=dict)

    def happens_now(self) -> bool:
        """Let one thing happen that needs no more time; False when there is none."""
        for transfer in self.transfers.values():
            if transfer.active and not transfer.latency and not transfer.work:
                transfer.end = self.now
                return True
        for transfer in self.transfers.values():
            in_flight = sum(other.active for other in self.transfers.values() if other.queue == transfer.queue)
            if transfer.start is None and in_flight < self.network.in_flight:
                transfer.start = self.now
                return True
        return not self.left and self.thread_acts()

    def thread_acts(self) -> bool:
        if self.running is not None:
            task = self.tasks[self.running]
            if task.kind == "launch":
                latency = Fraction(task.latency)
                self.transfers[self.running] = Moving(task.queue, latency, Fraction(task.duration) - latency)
            self.ends[self.running] = self.now
            self.running = None
            return True
        if self.next_task == len(self.tasks):
            return False
        position, task = self.next_task, self.tasks[self.next_task]
        self.starts.setdefault(position, self.now)
        if task.kind == "wait" and self.transfers[task.launch].end is None:
            return False
        self.running = position
        self.left = Fraction(task.issue if task.kind == "launch" else task.duration)
        self.next_task += 1
        return True

    def pace(self) -> Fraction:
        """How many seconds the thread needs for one second of its task."""
        computes = self.running is not None and self.tasks[self.running].kind == "compute"
        slow = computes and any(transfer.active for transfer in self.transfers.values())
        return 1 + Fraction(self.network.interference) if slow else Fraction(1)

    def speed(self, transfer: Moving) -> Fraction:
        rivals = [
            other
            for other in self.transfers.values()
            if other.active and not other.latency and (self.network.shared_link or other.queue == transfer.queue)
        ]
        return Fraction(1, len(rivals))

    def move_on(self) -> bool:
        """Go to the next moment at which something changes; False when nothing will."""
        pace = self.pace()
        steps = [self.left * pace] if self.left else []
        active = [transfer for transfer in self.transfers.values() if transfer.active]
        speeds = {id(transfer): self.speed(transfer) for transfer in active if not transfer.latency}
        for transfer in active:
            steps.append(transfer.latency or transfer.work / speeds[id(transfer)])
        if not steps:
            return False
        step = min(steps)
        self.now += step
        self.left = max(Fraction(0), self.left - step / pace)
        for transfer in active:
            if transfer.latency:
                transfer.latency -= step
            else:
                transfer.work -= step * speeds[id(transfer)]
        return True


def simulate(tasks: Sequence[Task], network: Network) -> World:
    world = World(tasks, network)
    while world.happens_now() or world.move_on():
        pass
    return world
