"""Which communication is exposed: whose transfer the issuing thread stalls for, and how long.

The thread stalls for one transfer at a time, the one it waits for, so each moment of a stall is charged to one
transfer:

- to the one waited for, from the moment it moves, whatever else moves beside it;
- before that, while it is queued, to the transfer of its queue that was launched first of those still moving.

After the last task nothing is left to hide a transfer: what still moves then is exposed, too, and each moment is
charged to the transfer that ends next.

So exposed time summed over regions is the total length of all stalls and of this tail, and a transfer is never charged
more than it moved.
"""

from dataclasses import dataclass

from annopipe.simulation.trace import Trace

__all__ = ["RegionComm", "exposed_by_launch", "region_comm"]


@dataclass(frozen=True, slots=True)
class RegionComm:
    """Communication of one region in one lane, in seconds.

    Attributes:
        region, lane: whose launches these are.
        comm: time its transfers move, added up (two that move at the same time count twice).
        hidden: the part during which no stall was charged to them.
        exposed: the part during which the issuing thread stalled for them.

    >>> RegionComm("block0/moe/dispatch", "F", comm=4.0, hidden=3.0, exposed=1.0).hidden_share
    0.75
    """

    region: str
    lane: str
    comm: float
    hidden: float
    exposed: float

    @property
    def hidden_share(self) -> float:
        """Hidden part, 0 to 1; 1 when nothing was communicated."""
        return self.hidden / self.comm if self.comm else 1.0


def exposed_by_launch(trace: Trace) -> dict[int, float]:
    """Exposed seconds of each transfer, by the position of its launch; those that were never exposed are left out.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("a", "launch", 2.0), Task("b", "launch", 1.0), Task("wait", "wait", launch=1)]
    >>> exposed_by_launch(run(program).trace)  # b is waited for, and a holds it up
    {0: 2.0, 1: 1.0}
    """
    queues: dict[str, list[int]] = {}
    for position in trace.transfers:
        queues.setdefault(trace.tasks[position].queue, []).append(position)
    front = dict.fromkeys(queues, 0)
    exposed: dict[int, float] = {}
    for wait in trace.stalled:
        launch = trace.tasks[wait].launch
        moves = trace.transfers[launch].start
        at, end = trace.starts[wait], trace.ends[wait]
        name = trace.tasks[launch].queue
        queue = queues[name]
        index = front[name]
        # Transfers that ended before this stall matter to no later stall either: each is passed over once.
        while trace.transfers[queue[index]].end <= at:
            index += 1
        front[name] = index
        while at < moves:
            ahead = trace.transfers[queue[index]].end
            if ahead > at:
                until = min(ahead, moves)
                exposed[queue[index]] = exposed.get(queue[index], 0.0) + (until - at)
                at = until
            index += 1
        exposed[launch] = exposed.get(launch, 0.0) + (end - at)
    at = trace.ends[-1] if trace.ends else 0.0
    for launch, transfer in sorted(trace.transfers.items(), key=lambda item: item[1].end):
        if transfer.end > at:
            exposed[launch] = exposed.get(launch, 0.0) + (transfer.end - at)
            at = transfer.end
    return exposed


def region_comm(trace: Trace) -> tuple[RegionComm, ...]:
    """Communication, hidden and exposed, of every lane and region that communicates, in order of first launch.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("a", "launch", 2.0, "dispatch"), Task("mm", "compute", 1.5), Task("wait", "wait", launch=0)]
    >>> region_comm(run(program).trace)
    (RegionComm(region='dispatch', lane='', comm=2.0, hidden=1.5, exposed=0.5),)
    """
    exposed = exposed_by_launch(trace)
    sums: dict[tuple[str, str], list[float]] = {}
    for position, transfer in trace.transfers.items():
        task = trace.tasks[position]
        row = sums.setdefault((task.lane, task.region), [0.0, 0.0])
        row[0] += transfer.end - transfer.start
        row[1] += exposed.get(position, 0.0)
    # Rounding can make a fully exposed sum exceed the moved one by a last bit.
    return tuple(
        RegionComm(region, lane, comm, max(0.0, comm - out), out) for (lane, region), (comm, out) in sums.items()
    )
