"""A timeline for a terminal: one drawing, one table, the largest stalls."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from annopipe.simulation.drawing import draw
from annopipe.simulation.wording import seconds_text, shorten

if TYPE_CHECKING:
    from annopipe.simulation.timeline import Timeline

__all__ = ["render"]

WIDTH = 100
_STALLS = 5
_LONGEST_LANE = 12


def render(timeline: "Timeline") -> str:
    """Draw a timeline in at most 100 columns.

    Each column of the drawing shows what took most of it: a lane's letter, `w` for weight gradients, `!` for a stall.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("x", "launch", 3.0), Task("mm", "compute", 2.0), Task("wait", "wait", launch=0)]
    >>> print(render(run(program)))  # doctest: +ELLIPSIS
    makespan 3 s   computation 2 s   bubble 33%
    communication 3 s, 67% hidden, 1 s exposed
    ...
    """
    parts = [_headline(timeline), draw(timeline, WIDTH), _region_table(timeline), _stall_list(timeline)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _headline(timeline: "Timeline") -> list[str]:
    times = [("makespan", timeline.makespan), ("computation", timeline.compute_time), ("host", timeline.host_time)]
    parts = [f"{name} {seconds_text(seconds)}" for name, seconds in times if seconds or name != "host"]
    lines = ["   ".join([*parts, f"bubble {timeline.bubble:.0%}"])]
    if timeline.comm_time:
        lines.append(
            f"communication {seconds_text(timeline.comm_time)}, {timeline.hidden_share:.0%} hidden, "
            f"{seconds_text(timeline.exposed_comm)} exposed"
        )
    return lines


def _region_table(timeline: "Timeline") -> list[str]:
    if not timeline.regions:
        return []
    rows: list[tuple[str, ...]] = [("lane", "region", "communication", "hidden", "exposed", "hidden share")]
    for region in timeline.regions:
        times = (seconds_text(seconds) for seconds in (region.comm, region.hidden, region.exposed))
        rows.append((shorten(region.lane, _LONGEST_LANE), region.region, *times, f"{region.hidden_share:.0%}"))
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their content, lane and region aligned left; the region gives way to the width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    too_much = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    if too_much > 0:
        widths[1] = max(8, widths[1] - too_much)
    lines = []
    for row in rows:
        cells = (
            f"{shorten(cell, width):<{width}}" if column < 2 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def _stall_list(timeline: "Timeline") -> list[str]:
    stalls = sorted(timeline.stalls, key=lambda stall: -stall.seconds)
    if not stalls:
        return []
    lines = [f"the largest of {len(stalls)} stalls" if len(stalls) > _STALLS else "stalls"]
    for stall in stalls[:_STALLS]:
        head = f"  {seconds_text(stall.seconds):>8} at {seconds_text(stall.start):<8}  "
        lines.append(head + shorten(stall.place, WIDTH - len(head)))
        lines += textwrap.wrap(stall.reason, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 12)
    return lines
