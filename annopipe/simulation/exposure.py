"""Which communication is exposed: whose transfer the issuing thread stalls for, and how long.

The thread stalls for one transfer at a time, the one it waits for, so each moment of a stall is charged to one
transfer:

- to the one waited for, from the moment it moves, whatever else moves beside it;
- before that, while it is queued, to the transfer of its queue that was launched first of those still moving.

After the last task nothing is left to hide a transfer: what still moves then is exposed, too, and each moment is
charged to the transfer that ends next.

So exposed time summed over regions is the total length of all stalls and of this tail, and a transfer is never charged
more than it moved.

Why a region is exposed: each piece has a cause, that of its stall, or one of two more. The cause that most of the
region's exposed time has is its reason:

    queue   queued behind others         link    shares the link
    early   waited early                 order   issued late
    input   its input came late          end     nothing left to run
    front   others queue behind it: the thread waits for a transfer that is still queued behind this one
    tail    after the last task
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annopipe.simulation.stalls import Stall
from annopipe.simulation.trace import Trace

__all__ = ["Piece", "RegionComm", "exposed_by_launch", "exposed_pieces", "region_comm"]

_WORDS = {
    "queue": "queued behind others",
    "link": "shares the link",
    "early": "waited early",
    "order": "issued late",
    "input": "its input came late",
    "end": "nothing left to run",
    "front": "others queue behind it",
    "tail": "after the last task",
}


@dataclass(frozen=True, slots=True)
class RegionComm:
    """Communication of one region in one lane, in seconds.

    Attributes:
        region, lane: whose launches these are.
        comm: time its transfers move, added up (two that move at the same time count twice).
        hidden: the part during which no stall was charged to them.
        exposed: the part during which the issuing thread stalled for them.
        why: in a few words what holds most of the exposed part there, "" if nothing is exposed.
        reason: the same for the longest exposed piece of that kind, as a sentence that names what is in the way.

    >>> RegionComm("block0/moe/dispatch", "F", comm=4.0, hidden=3.0, exposed=1.0).hidden_share
    0.75
    """

    region: str
    lane: str
    comm: float
    hidden: float
    exposed: float
    why: str = ""
    reason: str = ""

    @property
    def hidden_share(self) -> float:
        """Hidden part, 0 to 1; 1 when nothing was communicated."""
        return self.hidden / self.comm if self.comm else 1.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of exposed communication: whose transfer is charged, for which wait, and how many seconds.

    `launch` and `wait` are positions in the program; `wait` is -1 for what moves after the last task.

    >>> Piece(launch=0, wait=2, seconds=1.5).seconds
    1.5
    """

    launch: int
    wait: int
    seconds: float


def exposed_by_launch(trace: Trace) -> dict[int, float]:
    """Exposed seconds of each transfer, by the position of its launch; those that were never exposed are left out.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("a", "launch", 2.0), Task("b", "launch", 1.0), Task("wait", "wait", launch=1)]
    >>> exposed_by_launch(run(program).trace)  # b is waited for, and a holds it up
    {0: 2.0, 1: 1.0}
    """
    return _by_launch(exposed_pieces(trace))


def exposed_pieces(trace: Trace) -> list[Piece]:
    """All exposed communication, stall by stall in program order, then what moves after the last task.

    >>> from annopipe.simulation import Task, run
    >>> exposed_pieces(run([Task("a", "launch", 2.0), Task("wait", "wait", launch=0)]).trace)
    [Piece(launch=0, wait=1, seconds=2.0)]
    """
    queues: dict[str, list[int]] = {}
    for position in trace.transfers:
        queues.setdefault(trace.tasks[position].queue, []).append(position)
    front = dict.fromkeys(queues, 0)
    pieces: list[Piece] = []
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
                pieces.append(Piece(queue[index], wait, until - at))
                at = until
            index += 1
        pieces.append(Piece(launch, wait, end - at))
    at = trace.ends[-1] if trace.ends else 0.0
    for launch, transfer in sorted(trace.transfers.items(), key=lambda item: item[1].end):
        if transfer.end > at:
            pieces.append(Piece(launch, -1, transfer.end - at))
            at = transfer.end
    return pieces


def region_comm(trace: Trace, stalls: Sequence[Stall]) -> tuple[RegionComm, ...]:
    """Communication, hidden and exposed, of every lane and region that communicates, in order of first launch.

    `stalls` are those of the trace: `explain(trace)`.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("a", "launch", 2.0, "dispatch"), Task("mm", "compute", 1.5), Task("wait", "wait", launch=0)]
    >>> (row,) = run(program).regions
    >>> row.region, row.comm, row.hidden, row.exposed, row.why
    ('dispatch', 2.0, 1.5, 0.5, 'nothing left to run')
    """
    pieces = exposed_pieces(trace)
    exposed = _by_launch(pieces)
    sums: dict[tuple[str, str], list[float]] = {}
    for position, transfer in trace.transfers.items():
        task = trace.tasks[position]
        row = sums.setdefault((task.lane, task.region), [0.0, 0.0])
        row[0] += transfer.end - transfer.start
        row[1] += exposed.get(position, 0.0)
    reasons = _main_reasons(trace, pieces, stalls)
    # Rounding can make a fully exposed sum exceed the moved one by a last bit.
    return tuple(
        RegionComm(region, lane, comm, max(0.0, comm - out), out, *reasons.get((lane, region), ("", "")))
        for (lane, region), (comm, out) in sums.items()
    )


def _by_launch(pieces: Sequence[Piece]) -> dict[int, float]:
    exposed: dict[int, float] = {}
    for piece in pieces:
        exposed[piece.launch] = exposed.get(piece.launch, 0.0) + piece.seconds
    return exposed


def _main_reasons(
    trace: Trace, pieces: Sequence[Piece], stalls: Sequence[Stall]
) -> dict[tuple[str, str], tuple[str, str]]:
    """For each lane and region that is exposed: the cause of most of it in words, and its longest piece's sentence."""
    by_wait = dict(zip(trace.stalled, stalls, strict=True))
    found: dict[tuple[str, str], dict[str, list[tuple[float, str]]]] = {}
    for piece in pieces:
        if piece.seconds:
            task = trace.tasks[piece.launch]
            cause, sentence = _cause(trace, piece, by_wait)
            found.setdefault((task.lane, task.region), {}).setdefault(cause, []).append((piece.seconds, sentence))
    main = {}
    for place, causes in found.items():
        cause = max(causes, key=lambda name: sum(seconds for seconds, _ in causes[name]))
        _, sentence = max(causes[cause], key=lambda entry: entry[0])
        main[place] = (_WORDS[cause], sentence)
    return main


def _cause(trace: Trace, piece: Piece, stalls: Mapping[int, Stall]) -> tuple[str, str]:
    if piece.wait < 0:
        return "tail", "still moves after the last task"
    launch = trace.tasks[piece.wait].launch
    if launch != piece.launch:
        return "front", f"{trace.tasks[launch].label}, which the thread waits for, is queued behind it"
    return stalls[piece.wait].cause, stalls[piece.wait].reason
