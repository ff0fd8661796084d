"""A timeline as a Chrome trace, the JSON that https://ui.perfetto.dev and chrome://tracing open.

One thread per row of the drawing, one complete event ("X", microseconds) per span, one arrow from each transfer to the
place where the issuing thread waits for it. The same timeline gives the same bytes.
"""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from annopipe.simulation.spans import Span, comm_track

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["events", "write"]

_PROCESS = 0


def write(path: str | PathLike[str], timeline: "ProgramTimeline") -> None:
    """Write the trace of a timeline to a file.

    >>> import json, pathlib, tempfile
    >>> from annopipe.simulation import Task, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "trace.json")
    ...     write(path, run([Task("mm", "compute", 2e-3)]))
    ...     [event["dur"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    [2000.0]
    """
    document = {"displayTimeUnit": "ms", "traceEvents": events(timeline)}
    Path(path).write_text(json.dumps(document, separators=(",", ":"), allow_nan=False), encoding="utf-8")


def events(timeline: "ProgramTimeline") -> list[dict[str, object]]:
    """The trace's events as plain data: names of process and threads, then the spans row by row, then the arrows."""
    found: list[dict[str, object]] = [_name("process_name", 0, "annopipe rank")]
    for thread, track in enumerate(timeline.tracks):
        found.append(_name("thread_name", thread, track.label))
        found.append(
            {"ph": "M", "pid": _PROCESS, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}
        )
    reasons = dict(zip(timeline.trace.stalled, timeline.stalls, strict=True))
    syncs = {position: sync.sentence for sync in timeline.host_syncs for position in sync.read_positions}
    rows: dict[tuple[str, int], int] = {}  # (track, position of the task) -> the row it is drawn in
    for thread, track in enumerate(timeline.tracks):
        for span in track.spans:
            args = {"region": span.region, "lane": span.lane, "phase": span.phase, "position": span.position}
            if span.kind == "wait":
                args["reason"] = reasons[span.position].reason
            elif span.position in syncs:
                args["host_sync"] = syncs[span.position]
            found.append({**_event(thread, span), "args": args})
            rows[span.track, span.position] = thread
    return found + _arrows(timeline, rows)


def _arrows(timeline: "ProgramTimeline", rows: dict[tuple[str, int], int]) -> list[dict[str, object]]:
    """From each transfer to its wait; a wait that did not block has no span: its arrow ends at what runs next."""
    trace = timeline.trace
    found: list[dict[str, object]] = []
    following: int | None = None  # the row of what the thread runs next
    for position in range(len(trace.tasks) - 1, -1, -1):
        task = trace.tasks[position]
        following = rows.get(("host" if task.kind == "host" else "compute", position), following)
        if task.kind == "wait" and following is not None:
            arrow = {"cat": "transfer", "name": "transfer", "id": position, "pid": _PROCESS}
            at = trace.starts[position]
            found.append({"ph": "f", "bp": "e", **arrow, "tid": following, "ts": _us(at)})
            track = comm_track(trace.tasks[task.launch])
            at = trace.transfers[task.launch].start
            found.append({"ph": "s", **arrow, "tid": rows[track, task.launch], "ts": _us(at)})
    found.reverse()
    return found


def _name(what: str, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": what, "args": {"name": name}}


def _event(thread: int, span: Span) -> dict[str, object]:
    start, end = _us(span.start), _us(span.end)
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "name": span.name,
        "cat": span.kind,
    }


def _us(seconds: float) -> float:
    return seconds * 1e6
