"""Timelines as one web page that needs nothing else: no network, no library.

`viewer.html` beside this file is the page without its data. Timelines of one page share the time scale, the zoom and
the colours. A colour belongs to a region's own name, so that "block0/moe/dispatch" and "block7/moe/dispatch" look
alike; names are sorted, so the same regions have the same colours on every page.
"""

import json
import re
from collections.abc import Mapping
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from annopipe.simulation.exposure import exposed_by_launch
from annopipe.simulation.spans import Span
from annopipe.simulation.wording import seconds_text

if TYPE_CHECKING:
    from annopipe.simulation.timeline import Timeline

__all__ = ["page", "write"]

_STALLS = 12
_FIRST_HUE = 25.0


def write(path: str | PathLike[str], timelines: Mapping[str, "Timeline"], title: str = "annopipe timeline") -> None:
    """Write a page that shows timelines below each other on one time scale, each with its table.

    >>> import pathlib, tempfile
    >>> from annopipe.simulation import Task, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "timeline.html")
    ...     write(path, {"list": run([Task("mm", "compute", 1.0)])}, "one product")
    ...     path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    True
    """
    Path(path).write_text(page(timelines, title), encoding="utf-8")


def page(timelines: Mapping[str, "Timeline"], title: str) -> str:
    """The page as text: `viewer.html` with its @@NAMES@@ filled in."""
    parts = {
        "TITLE": escape(title),
        "DRAWINGS": "".join(_drawing(n, name, timeline) for n, (name, timeline) in enumerate(timelines.items())),
        "TABLES": "".join(_tables(name, timeline) for name, timeline in timelines.items()),
        # "<" inside the data could end the script element.
        "DATA": json.dumps(_data(timelines), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    template = Path(__file__).with_name("viewer.html").read_text(encoding="utf-8")
    # One pass: a title that contains such a name stays as it is.
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], template)


def _drawing(number: int, name: str, timeline: "Timeline") -> str:
    """Heading, key numbers, and the canvas that the viewer draws on."""
    chips = [("makespan", seconds_text(timeline.makespan)), ("computation", seconds_text(timeline.compute_time))]
    if timeline.host_time:
        chips.append(("host", seconds_text(timeline.host_time)))
    chips.append(("bubble", f"{timeline.bubble:.0%}"))
    if timeline.comm_time:
        chips += [
            ("communication", seconds_text(timeline.comm_time)),
            ("hidden", f"{timeline.hidden_share:.0%}"),
            ("exposed", seconds_text(timeline.exposed_comm)),
        ]
    numbers = "".join(f"<span>{what} <b>{value}</b></span>" for what, value in chips)
    label = escape(f"Timeline {name}".strip())
    return f"""<div class="head">{_heading(name)}<div class="chips">{numbers}</div></div>
<canvas id="timeline-{number}" tabindex="0" role="img" aria-label="{label}"></canvas>
"""


def _tables(name: str, timeline: "Timeline") -> str:
    tables = _regions(timeline) + _stalls(timeline)
    head = f'<div class="head">{_heading(name)}</div>\n' if name else ""
    return f'<section>\n{head}<div class="tables">\n{tables}</div>\n</section>\n' if tables else ""


def _heading(name: str) -> str:
    return f"<h2>{escape(name)}</h2>" if name else ""


def _regions(timeline: "Timeline") -> str:
    if not timeline.regions:
        return ""
    longest = max(region.comm for region in timeline.regions) or 1.0
    rows = []
    for region in timeline.regions:
        hidden, exposed = (f"{100 * part / longest:.2f}%" for part in (region.hidden, region.exposed))
        times = "".join(f"<td>{seconds_text(part)}</td>" for part in (region.comm, region.hidden, region.exposed))
        rows.append(
            f"<tr><td>{escape(region.lane)}</td><td>{escape(region.region)}</td>{times}"
            f'<td class="bar"><i class="hidden-part" style="width:{hidden}"></i>'
            f'<i class="exposed-part" style="width:{exposed}"></i></td></tr>'
        )
    head = "".join(f"<th>{name}</th>" for name in ("lane", "region", "moves", "hidden", "exposed", ""))
    return _table("communication", "regions", head, rows)


def _stalls(timeline: "Timeline") -> str:
    stalls = sorted(timeline.stalls, key=lambda stall: -stall.seconds)
    if not stalls:
        return ""
    rows = []
    for stall in stalls[:_STALLS]:
        rows.append(
            f'<tr><td class="exposed">{seconds_text(stall.seconds)}</td><td>{seconds_text(stall.start)}</td>'
            f"<td>{escape(stall.place)}</td><td>{escape(stall.reason)}</td></tr>"
        )
    caption = f"stalls, the largest {_STALLS} of {len(stalls)}" if len(stalls) > _STALLS else "stalls"
    head = "<th>length</th><th>at</th><th>waits for</th><th>what holds it there</th>"
    return _table(caption, "stalls", head, rows)


def _table(caption: str, name: str, head: str, rows: list[str]) -> str:
    body = "\n".join(rows)
    return f'<div class="{name}"><h3>{caption}</h3><table>\n<tr>{head}</tr>\n{body}\n</table></div>\n'


def _data(timelines: Mapping[str, "Timeline"]) -> dict[str, object]:
    """What the viewer draws.

    A span is [start, end, kind, name, colour, region, lane, phase, detail, launch]: six numbers of texts from name on,
    and the position of the launch that joins a transfer with its wait.
    """
    every = [span for timeline in timelines.values() for span in timeline.spans]
    names = sorted({_own_name(span.region) for span in every} - {""})
    texts: dict[str, int] = {"": 0}
    drawings = []
    for timeline in timelines.values():
        details = _details(timeline)
        rows = [
            {"label": track.label, "spans": [_record(timeline, span, details, texts) for span in track.spans]}
            for track in timeline.tracks
        ]
        drawings.append({"makespan": timeline.makespan, "rows": rows})
    return {
        "hues": {name: round((_FIRST_HUE + 360 * number / len(names)) % 360, 1) for number, name in enumerate(names)},
        "lanes": sorted({span.lane for span in every} - {""}),
        "timelines": drawings,
        "texts": list(texts),
    }


def _record(timeline: "Timeline", span: Span, details: Mapping[int, str], texts: dict[str, int]) -> list[object]:
    strings = (span.name, _own_name(span.region), span.region, span.lane, span.phase)
    task = timeline.trace.tasks[span.position]
    pair = {"launch": span.position, "wait": task.launch}.get(span.kind, -1)
    detail = details.get(span.position, "")
    return [span.start, span.end, span.kind, *(texts.setdefault(text, len(texts)) for text in (*strings, detail)), pair]


def _details(timeline: "Timeline") -> dict[int, str]:
    """A sentence for the tooltip, by position: why a wait stalls, how much of a transfer is exposed."""
    trace = timeline.trace
    exposed = exposed_by_launch(trace)
    found = {wait: stall.reason for wait, stall in zip(trace.stalled, timeline.stalls, strict=True)}
    for launch, transfer in trace.transfers.items():
        queued = f", {seconds_text(transfer.queued)} in the queue" if transfer.queued else ""
        found[launch] = f"{seconds_text(exposed.get(launch, 0.0))} exposed{queued}"
    return found


def _own_name(region: str) -> str:
    return region.rpartition("/")[2]
