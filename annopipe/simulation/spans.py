"""A trace as bars to draw: which track each lies on, and how tracks are laid out in rows."""

from collections.abc import Iterable
from dataclasses import dataclass

from annopipe.simulation.tasks import Kind, Task
from annopipe.simulation.trace import Trace

__all__ = ["Span", "Track", "comm_track", "lay_out", "spans_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """One bar; times in seconds.

    Attributes:
        track: "compute" and "host" for the issuing thread (host work is drawn apart, although the thread does one
            thing at a time), "comm <queue>" for the transfers of a queue.
        name: of the task.
        start, end: of the bar.
        kind: of the task. On a comm track "launch" is the transfer, on "compute" it is the time the thread spends to
            issue it; "wait" is a stall.
        region, lane, phase: of the task.
        position: of the task in the program.

    Tasks that take no time have no bar; every transfer has one.

    >>> Span("compute", "mm", 1.0, 3.0, "compute").seconds
    2.0
    """

    track: str
    name: str
    start: float
    end: float
    kind: Kind
    region: str = ""
    lane: str = ""
    phase: str = ""
    position: int = -1

    @property
    def seconds(self) -> float:
        """Length of the bar."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Track:
    """One row of a drawing: spans that do not overlap, in order of time."""

    label: str
    spans: tuple[Span, ...]


def spans_of(trace: Trace) -> tuple[Span, ...]:
    """All bars of a trace: compute, host, then the queues in order of first use; in order of time in each.

    >>> from annopipe.simulation import Task, run
    >>> [(span.track, span.kind) for span in run([Task("a", "launch", 2.0, queue="ep", issue=1.0)]).spans]
    [('compute', 'launch'), ('comm ep', 'launch')]
    """
    tracks: dict[str, list[Span]] = {"compute": [], "host": []}
    for position, task in enumerate(trace.tasks):
        start, end = trace.starts[position], trace.ends[position]
        if end > start:
            track = "host" if task.kind == "host" else "compute"
            tracks[track].append(_span(track, task, start, end, position))
    for position, transfer in trace.transfers.items():
        task = trace.tasks[position]
        track = comm_track(task)
        tracks.setdefault(track, []).append(_span(track, task, transfer.start, transfer.end, position))
    return tuple(span for spans in tracks.values() for span in spans)


def comm_track(launch: Task) -> str:
    """The track of a launch's transfer.

    >>> comm_track(Task("exchange", "launch", queue="ep"))
    'comm ep'
    """
    return f"comm {launch.queue}".rstrip()


def _span(track: str, task: Task, start: float, end: float, position: int) -> Span:
    return Span(track, task.name, start, end, task.kind, task.region, task.lane, task.phase, position)


def lay_out(spans: Iterable[Span]) -> tuple[Track, ...]:
    """Rows to draw: one per track, and further ones where spans of a track overlap.

    >>> [track.label for track in lay_out([Span("comm", "a", 0, 2, "launch"), Span("comm", "b", 1, 3, "launch")])]
    ['comm', 'comm #2']
    """
    rows: dict[str, list[list[Span]]] = {}
    for span in spans:
        places = rows.setdefault(span.track, [])
        free = next((row for row in places if row[-1].end <= span.start), None)
        if free is None:
            places.append([span])
        else:
            free.append(span)
    return tuple(
        Track(track if number == 1 else f"{track} #{number}", tuple(row))
        for track, places in rows.items()
        for number, row in enumerate(places, 1)
    )
