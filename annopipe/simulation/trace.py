"""What happened when one program ran: the raw record from which every number of a timeline is computed."""

from collections.abc import Mapping
from dataclasses import dataclass

from annopipe.simulation.tasks import Network, Task

__all__ = ["Trace", "Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer: launched (it enters its queue), started (it moves), ended. Seconds.

    >>> Transfer(launched=1.0, start=3.0, end=4.5).queued
    2.0
    """

    launched: float
    start: float
    end: float

    @property
    def queued(self) -> float:
        """Time spent behind other transfers of its queue."""
        return self.start - self.launched


@dataclass(frozen=True, slots=True)
class Trace:
    """The program, the network, and the times of what happened, in seconds from the start of the program.

    Attributes:
        tasks: the program.
        network: the network it ran on.
        starts, ends: when each task occupied the issuing thread; for a wait, the stall.
        transfers: the transfer of each launch, by the launch's position, in program order.

    >>> Trace((), Network(), (), (), {}).stalled
    ()
    """

    tasks: tuple[Task, ...]
    network: Network
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    transfers: Mapping[int, Transfer]

    @property
    def stalled(self) -> tuple[int, ...]:
        """Positions of the waits at which the thread stalled, in program order."""
        return tuple(p for p, task in enumerate(self.tasks) if task.kind == "wait" and self.ends[p] > self.starts[p])

    @property
    def makespan(self) -> float:
        """When all tasks and all transfers are finished."""
        thread = self.ends[-1] if self.ends else 0.0
        return max(thread, max((transfer.end for transfer in self.transfers.values()), default=0.0))
