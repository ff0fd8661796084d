"""What a still picture of timelines shows, before anything is drawn: rows of runs, and what stands above and below."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from annopipe.simulation.intervals import Interval
from annopipe.simulation.runs import Run, runs
from annopipe.simulation.summary import key_numbers, own_group_advice
from annopipe.simulation.wording import place_text, seconds_text

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["Panel", "Row", "panels_of"]

_NOTES = 3
_TOUCHING = 1e-9  # of the makespan: computations closer than this follow each other


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its label and its runs, in order of time."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One timeline: name and key numbers above it, the issuing thread first of its rows, sentences below it.

    `stalls` are the times at which the thread is stalled.
    """

    name: str
    headline: str
    makespan: float
    rows: tuple[Row, ...]
    stalls: tuple[Interval, ...]
    notes: tuple[str, ...]


def panels_of(timelines: Mapping[str, "ProgramTimeline"]) -> list[Panel]:
    """A panel for each timeline.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("x", "launch", 3.0, "dispatch", queue="ep"), Task("item", "host", 1.0)]
    >>> (panel,) = panels_of({"one": run(program)})
    >>> [(row.label, len(row.runs)) for row in panel.rows]
    [('thread', 1), ('comm ep', 1)]
    >>> panel.notes
    ('2 s exposed  dispatch: still moves after the last task',)
    """
    return [_panel(name, timeline) for name, timeline in timelines.items()]


def _panel(name: str, timeline: "ProgramTimeline") -> Panel:
    gap = _TOUCHING * timeline.makespan
    # Host work is drawn with the rest: the thread does one thing at a time.
    thread = sorted((s for s in timeline.spans if s.track in ("compute", "host")), key=lambda span: span.start)
    comm = (track for track in timeline.tracks if track.label not in ("compute", "host"))
    return Panel(
        name,
        _headline(timeline),
        timeline.makespan,
        (Row("thread", tuple(runs(thread, gap))), *(Row(track.label, tuple(runs(track.spans))) for track in comm)),
        tuple((stall.start, stall.end) for stall in timeline.stalls),
        _notes(timeline),
    )


def _headline(timeline: "ProgramTimeline") -> str:
    parts = [f"{name} {value}" for name, value in key_numbers(timeline)]
    if timeline.comm_time:
        comm, exposed = seconds_text(timeline.comm_time), seconds_text(timeline.exposed_comm)
        parts.insert(1, f"{timeline.hidden_share:.0%} of {comm} communication hidden, {exposed} exposed")
    return "   ".join(parts)


def _notes(timeline: "ProgramTimeline") -> tuple[str, ...]:
    """The most exposed regions with their main reasons, and what a group of their own would save count exchanges."""
    exposed = sorted((row for row in timeline.regions if row.exposed), key=lambda row: -row.exposed)
    notes = [
        f"{seconds_text(row.exposed)} exposed  {place_text(row.lane, row.region) or 'no region'}: {row.reason}"
        for row in exposed[:_NOTES]
    ]
    advice = own_group_advice(timeline) if timeline.own_group_saving > 0 else ""
    return (*notes, advice) if advice else tuple(notes)
