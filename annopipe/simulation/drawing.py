"""The drawing of a timeline for a terminal: one row of characters per track."""

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from annopipe.simulation.spans import Span, Track
from annopipe.simulation.wording import initials, seconds_text, shorten

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["draw"]

_LONGEST_LABEL = 16
_IDLE, _STALL, _HOST, _WEIGHT, _NO_LANE = ".", "!", "h", "w", "#"
_MEANING = {_WEIGHT: "weight gradient", _HOST: "host", _STALL: "stalled", _IDLE: "idle"}


def draw(timeline: "ProgramTimeline", width: int) -> list[str]:
    """The lines of the drawing: a row per track, the time axis, the legend; none for a timeline that takes no time.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("attention", "compute", 1.0, lane="F"), Task("experts", "compute", 2.0, lane="B")]
    >>> draw(run(program), 20)
    ['compute FFFFBBBBBBBB', '        0        3 s', 'F lane F   B lane B']
    """
    if not timeline.makespan:
        return []
    letters = _lane_letters(span.lane for span in timeline.spans)
    labels = [shorten(track.label, _LONGEST_LABEL) for track in timeline.tracks]
    margin = max(len(label) for label in labels) + 1
    columns = width - margin
    lines = [
        f"{label:<{margin}}{_row(track, columns, timeline.makespan, letters)}"
        for label, track in zip(labels, timeline.tracks, strict=True)
    ]
    drawn = set("".join(line[margin:] for line in lines))
    meaning = {letter: f"lane {lane}" if lane else "no lane" for lane, letter in letters.items()} | _MEANING
    legend = "   ".join(f"{letter} {what}" for letter, what in meaning.items() if letter in drawn)
    end = seconds_text(timeline.makespan)
    axis = f"{'':<{margin}}0{end:>{columns - 1}}"
    return [*lines, axis, *textwrap.wrap(legend, width)]


def _row(track: Track, columns: int, makespan: float, letters: dict[str, str]) -> str:
    """One character a column: that of the span that takes most of it, idle if spans take less than half of it."""
    most = [0.0] * columns
    covered = [0.0] * columns
    drawn = [_IDLE] * columns
    for span in track.spans:
        start, end = span.start / makespan * columns, span.end / makespan * columns
        letter = _letter(span, letters)
        for column in range(int(start), min(columns, int(end) + 1)):
            part = min(end, column + 1) - max(start, column)
            covered[column] += part
            if part > most[column]:
                most[column], drawn[column] = part, letter
    # Host work is short, and worth seeing.
    enough = 0.0 if track.label == "host" else 0.5
    return "".join(letter if part >= enough else _IDLE for letter, part in zip(drawn, covered, strict=True))


def _letter(span: Span, letters: dict[str, str]) -> str:
    if span.kind == "wait":
        return _STALL
    if span.kind == "host":
        return _HOST
    return _WEIGHT if span.phase == "weight_grad" else letters[span.lane]


def _lane_letters(lanes: Iterable[str]) -> dict[str, str]:
    return {"": _NO_LANE} | initials((lane for lane in lanes if lane), taken=_NO_LANE)
