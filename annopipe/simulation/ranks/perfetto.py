"""A schedule's timeline as a Chrome trace, the JSON that https://ui.perfetto.dev and chrome://tracing open.

One process per rank: a thread for its computation, one for each rank that it sends to, and a counter of its memory. An
arrow leads from each message to the action that uses it, and an action that waited says for which message. The same
timeline gives the same bytes.
"""

import json
from collections.abc import Iterator
from os import PathLike

from annopipe.simulation.files import place_for
from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import Message
from annopipe.simulation.ranks.uses import Place, users, waits

__all__ = ["events", "write"]

_COMPUTE = 0


def write(path: str | PathLike[str], timeline: Pictured) -> None:
    """Write the trace of a timeline to a file; folders that are missing are made.

    Raises AnnopipeError when the file cannot be written.

    >>> import pathlib, tempfile
    >>> import annopipe as ap
    >>> schedule = ap.Schedule.of(ap.placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> timeline = ap.simulate(schedule, ap.costs.table(F=1.0, B=2.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "trace.json")
    ...     write(path, timeline)
    ...     path.read_text(encoding="utf-8").count('"ph":"X"')  # four actions, two messages
    6
    """
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    # Event by event: a large schedule has a million.
    with place_for(path) as place, place.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(events(timeline)):
            file.write(",\n" * (number > 0) + encode(event))
        file.write("\n]}\n")


def events(timeline: Pictured) -> Iterator[dict[str, object]]:
    """The trace's events as plain data: names, then the spans of each rank, its messages with arrows, its memory."""
    used_by = users(timeline, Looks([timeline]))
    links = sorted({(message.sender, message.receiver) for message in timeline.messages})
    threads = {link: _COMPUTE + 1 + number for number, link in enumerate(links)}
    for rank in range(timeline.ranks):
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
        yield _thread_name(rank, _COMPUTE, "compute")
    for sender, receiver in links:
        yield _thread_name(sender, threads[sender, receiver], f"to rank {receiver}")
    yield from _spans(timeline, waits(timeline, used_by))
    yield from _messages(timeline, threads, used_by)
    for rank, steps in enumerate(timeline.memory):
        for time, amount in steps:
            yield {"ph": "C", "pid": rank, "name": "memory", "ts": _us(time), "args": {"held": amount}}


def _spans(timeline: Pictured, waited_for: dict[Place, Message]) -> Iterator[dict[str, object]]:
    critical = {(part.text, part.start) for part in timeline.critical_path}
    looks = Looks([timeline])
    for rank, row in enumerate(timeline.spans):
        for at, span in enumerate(row):
            args: dict[str, object] = {"stage": span.stage, "microbatch": span.microbatch}
            if span.parts:
                args["parts"] = list(span.parts)
            if looks.lanes and (lanes := [piece.lanes for piece in looks.pieces(timeline, span)]) != [1] * len(lanes):
                args["nano_batches"] = lanes
            if (rank, at) in waited_for:
                args["waited_for"] = waited_for[rank, at].text
            if (span.text, span.start) in critical:
                args["critical"] = True
            times = _times(span.start, span.end)
            yield {"ph": "X", "pid": rank, "tid": _COMPUTE, **times, "name": span.text, "cat": span.kind, "args": args}


def _messages(
    timeline: Pictured, threads: dict[tuple[int, int], int], used_by: list[Place | None]
) -> Iterator[dict[str, object]]:
    rows = timeline.spans
    for number, (message, user) in enumerate(zip(timeline.messages, used_by, strict=True)):
        place = {"pid": message.sender, "tid": threads[message.sender, message.receiver]}
        args = {"receiver": message.receiver, "arrival": _us(message.arrival)}
        times = _times(message.start, message.sent)
        yield {"ph": "X", **place, **times, "name": message.text, "cat": "message", "args": args}
        if user is not None:
            rank, at = user
            arrow = {"cat": "message", "name": "message", "id": number}
            yield {"ph": "s", **arrow, **place, "ts": _us(message.start)}
            yield {"ph": "f", "bp": "e", **arrow, "pid": rank, "tid": _COMPUTE, "ts": _us(rows[rank][at].start)}


def _thread_name(process: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _times(start: float, end: float) -> dict[str, float]:
    return {"ts": _us(start), "dur": round(_us(end) - _us(start), 3)}


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)
