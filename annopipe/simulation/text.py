"""A timeline for a terminal: one drawing, one table, the largest stalls and host synchronisations."""

import textwrap
from typing import TYPE_CHECKING

from annopipe.simulation.drawing import draw
from annopipe.simulation.summary import key_numbers, own_group_advice
from annopipe.simulation.tables import table
from annopipe.simulation.wording import seconds_text, shorten

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["render"]

WIDTH = 100
_STALLS = 5
_SYNCS = 3
_LONGEST_LANE = 12


def render(timeline: "ProgramTimeline") -> str:
    """Draw a timeline in at most 100 columns.

    Each column of the drawing shows what took most of it: a lane's letter, `w` for weight gradients, `!` for a stall.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("x", "launch", 3.0), Task("mm", "compute", 2.0), Task("wait", "wait", launch=0)]
    >>> print(render(run(program)))  # doctest: +ELLIPSIS
    makespan 3 s   computation 2 s   bubble 33%
    communication 3 s, 67% hidden, 1 s exposed
    ...
    """
    parts = [_headline(timeline), draw(timeline, WIDTH), _region_table(timeline)]
    parts += [_stall_list(timeline), _sync_list(timeline)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _headline(timeline: "ProgramTimeline") -> list[str]:
    parts = [*(f"{name} {value}" for name, value in key_numbers(timeline)), f"bubble {timeline.bubble:.0%}"]
    lines = ["   ".join(parts)]
    if len(lines[0]) > WIDTH:
        lines = ["   ".join(parts[:3]), "   ".join(parts[3:])]
    if timeline.comm_time:
        lines.append(
            f"communication {seconds_text(timeline.comm_time)}, {timeline.hidden_share:.0%} hidden, "
            f"{seconds_text(timeline.exposed_comm)} exposed"
        )
    return lines


def _region_table(timeline: "ProgramTimeline") -> list[str]:
    if not timeline.regions:
        return []
    rows: list[tuple[str, ...]] = [("lane", "region", "moves", "hidden", "exposed", "hidden share", "main reason")]
    for region in timeline.regions:
        times = (seconds_text(seconds) for seconds in (region.comm, region.hidden, region.exposed))
        rows.append(
            (shorten(region.lane, _LONGEST_LANE), region.region, *times, f"{region.hidden_share:.0%}", region.why)
        )
    return table(rows, WIDTH, left=(0, 1, 6))


def _stall_list(timeline: "ProgramTimeline") -> list[str]:
    stalls = sorted(timeline.stalls, key=lambda stall: -stall.seconds)
    if not stalls:
        return []
    lines = [f"the largest of {len(stalls)} stalls" if len(stalls) > _STALLS else "stalls"]
    for stall in stalls[:_STALLS]:
        head = f"  {seconds_text(stall.seconds):>8} at {seconds_text(stall.start):<8}  "
        lines.append(head + shorten(stall.place, WIDTH - len(head)))
        lines += _indented(stall.reason)
    return lines


def _sync_list(timeline: "ProgramTimeline") -> list[str]:
    syncs = sorted(timeline.host_syncs, key=lambda sync: -sync.blocked)
    if not syncs:
        return []
    many = len(syncs) > _SYNCS
    lines = [f"host synchronisations, the longest {_SYNCS} of {len(syncs)}" if many else "host synchronisations"]
    for sync in syncs[:_SYNCS]:
        head = f"  {seconds_text(sync.blocked):>8} at {seconds_text(sync.blocked_from):<8}  "
        lines.append(head + shorten(sync.place, WIDTH - len(head)))
        lines += _indented(sync.sentence)
    advice = own_group_advice(timeline)
    return [*lines, *textwrap.wrap(advice, WIDTH, initial_indent="  ", subsequent_indent="  ")] if advice else lines


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 12)
