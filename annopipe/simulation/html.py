"""Timelines as one web page that needs nothing else: no network, no library.

`viewer.js` beside this file draws. The timelines of one page share the time scale, the zoom and the colours.
"""

from collections.abc import Mapping
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from annopipe.simulation import shell
from annopipe.simulation.files import write_text
from annopipe.simulation.summary import key_numbers, own_group_advice
from annopipe.simulation.viewer_data import viewer_data
from annopipe.simulation.wording import seconds_text

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["page", "write"]

_STALLS, _SYNCS = 12, 12
_SCRIPT = Path(__file__).with_name("viewer.js")


def write(
    path: str | PathLike[str], timelines: Mapping[str, "ProgramTimeline"], title: str = "annopipe timeline"
) -> None:
    """Write a page that shows timelines below each other on one time scale, each with its table.

    Raises AnnopipeError when the file cannot be written; folders that are missing are made.

    >>> import pathlib, tempfile
    >>> from annopipe.simulation import Task, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "timeline.html")
    ...     write(path, {"list": run([Task("mm", "compute", 1.0)])}, "one product")
    ...     path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    True
    """
    write_text(path, page(timelines, title))


def page(timelines: Mapping[str, "ProgramTimeline"], title: str) -> str:
    """The page as text."""
    drawings = "".join(_drawing(n, name, timeline) for n, (name, timeline) in enumerate(timelines.items()))
    tables = "".join(_tables(name, timeline) for name, timeline in timelines.items())
    return shell.page(title, drawings, tables, viewer_data(timelines), _SCRIPT)


def _drawing(number: int, name: str, timeline: "ProgramTimeline") -> str:
    chips = [*key_numbers(timeline), ("bubble", f"{timeline.bubble:.0%}")]
    if timeline.comm_time:
        chips += [
            ("communication", seconds_text(timeline.comm_time)),
            ("hidden", f"{timeline.hidden_share:.0%}"),
            ("exposed", seconds_text(timeline.exposed_comm)),
        ]
    return shell.drawing(number, name, chips)


def _tables(name: str, timeline: "ProgramTimeline") -> str:
    tables = _regions(timeline) + _stalls(timeline) + _syncs(timeline)
    head = f'<div class="head">{shell.heading(name)}</div>\n' if name else ""
    return f'<section>\n{head}<div class="tables">\n{tables}</div>\n</section>\n' if tables else ""


def _regions(timeline: "ProgramTimeline") -> str:
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
            f'<i class="exposed-part" style="width:{exposed}"></i></td>'
            f'<td title="{escape(region.reason)}">{escape(region.why)}</td></tr>'
        )
    head = "".join(f"<th>{name}</th>" for name in ("lane", "region", "moves", "hidden", "exposed", "", "main reason"))
    return _table("communication", "regions", head, rows)


def _stalls(timeline: "ProgramTimeline") -> str:
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


def _syncs(timeline: "ProgramTimeline") -> str:
    syncs = sorted(timeline.host_syncs, key=lambda sync: -sync.blocked)
    if not syncs:
        return ""
    rows = [
        f"<tr><td>{seconds_text(sync.blocked)}</td><td>{seconds_text(sync.blocked_from)}</td>"
        f"<td>{escape(sync.place)}</td><td>{escape(sync.sentence)}</td></tr>"
        for sync in syncs[:_SYNCS]
    ]
    caption = "host synchronisations" + (f", the longest {_SYNCS} of {len(syncs)}" if len(syncs) > _SYNCS else "")
    head = "<th>blocked</th><th>at</th><th>place</th><th>what was read, and what held it up</th>"
    advice = own_group_advice(timeline)
    return _table(caption, "stalls", head, rows, f"<p>{escape(advice)}</p>\n" if advice else "")


def _table(caption: str, name: str, head: str, rows: list[str], note: str = "") -> str:
    body = "\n".join(rows)
    return f'<div class="{name}"><h3>{caption}</h3><table>\n<tr>{head}</tr>\n{body}\n</table>{note}</div>\n'
