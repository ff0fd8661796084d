"""A schedule in characters: each rank's row, with microbatch numbers where there is room, with letters where not.

With numbers, a span is as wide as it is long: `3` is a forward of microbatch 3, `B3`, `I3`, `W3` its backwards, `4+B3`
a combination, `3/2` a forward as two nano-batches; `-` fills up, and a blank ends it. `3a` and `3b` are on the first
and on the second stage of the rank.
Long rows go on in a further band below. With letters, each character is something that runs in its share of the time;
over a row they are in proportion to the time that they take, so 10% of points are 10% of idle time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from annopipe.simulation.ranks.looks import Looks, Piece
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import RankSpan
from annopipe.simulation.ranks.units import time_unit
from annopipe.simulation.wording import initials, seconds_text

__all__ = ["COMBINED", "IDLE", "Band", "chunk_letter", "letter_band", "letters_of", "number_bands"]

IDLE, COMBINED, _FILL, _END = ".", "+", "-", " "
_MOST_LINES = 40
_COMPUTE = ("F", "B", "I", "W")
_TICK = 14  # columns from one mark of the time axis to the next, at least


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of time: a row of characters per rank, all of the same length, and the time axis below them."""

    rows: tuple[str, ...]
    axis: str


def letters_of(looks: Looks) -> dict[str, str]:
    """The letter of each kind: F, B, I and W their own."""
    return initials([*_COMPUTE, *looks.kinds], taken=(IDLE, COMBINED))


def number_bands(timeline: Pictured, looks: Looks, columns: int) -> list[Band] | None:
    """The drawing with microbatch numbers, or None when it would take more than 40 lines."""
    if max(map(len, timeline.spans), default=0) * 2 > columns * _MOST_LINES:
        return None  # even one digit and a blank each are too many
    letters = letters_of(looks)
    labels = [[_label(looks.pieces(timeline, span), looks, letters) for span in row] for row in timeline.spans]
    scale = _scale(timeline, labels)
    if not scale:
        return None
    length = round(timeline.makespan * scale)
    count = ceil(length / columns)
    if count > 1 and count * (timeline.ranks + 1) > _MOST_LINES:
        return None
    rows, inside = [], set[int]()
    for spans, names in zip(timeline.spans, labels, strict=True):
        row, places = _numbered(spans, names, scale, length)
        rows.append(row)
        inside |= places
    bands, at = [], 0
    while at < length:
        left = ceil((length - at) / columns)
        end = min(length, at + ceil((length - at) / left))  # bands of about the same length
        # No label is cut in two, unless it is as long as the band.
        end = next((place for place in range(end, at, -1) if place not in inside or place == length), end)
        bands.append(Band(tuple(row[at:end] for row in rows), _axis(at, end, columns, scale, timeline.makespan)))
        at = end
    return bands


def letter_band(timeline: Pictured, looks: Looks, columns: int) -> Band:
    """The drawing with one character for an equal share of the time; small letters are later stages of a rank."""
    letters = letters_of(looks)
    scale = columns / timeline.makespan if timeline.makespan else 0.0
    rows = tuple(_lettered(timeline, looks, letters, row, columns, scale) for row in timeline.spans)
    return Band(rows, _axis(0, columns, columns, scale, timeline.makespan))


def _label(pieces: Sequence[Piece], looks: Looks, letters: dict[str, str]) -> str:
    texts = []
    for piece in pieces:
        number = "" if piece.microbatch is None else str(piece.microbatch)
        letter = "" if piece.kind == "F" and number else letters[piece.kind]
        chunk = chunk_letter(piece.chunk) if looks.chunks > 1 else ""
        texts.append(f"{letter}{number}{chunk}{f'/{piece.lanes}' if piece.lanes > 1 else ''}")
    return COMBINED.join(texts)


def chunk_letter(chunk: int) -> str:
    """What stands behind a microbatch for the how-manieth stage of its rank: a, b, c, ..."""
    return chr(ord("a") + chunk) if chunk < 26 else "?"


def _scale(timeline: Pictured, labels: list[list[str]]) -> float:
    """Characters a second: room for the label of every computation and a blank behind it.

    Where times have a unit it is a whole number of characters, unless that takes half as much room again.
    """
    longest: dict[tuple[str, float], int] = {}  # of the labels of equal spans
    for spans, names in zip(timeline.spans, labels, strict=True):
        for span, name in zip(spans, names, strict=True):
            if span.end > span.start and (span.parts or span.kind in _COMPUTE):
                key = (span.kind, span.end - span.start)
                longest[key] = max(longest.get(key, 0), len(name))
    exact, rounded = (
        max(((length + blank) / seconds for (_, seconds), length in longest.items()), default=0.0) for blank in (1, 2)
    )
    unit = time_unit(timeline)
    whole = ceil(exact * unit - 1e-6) / unit if unit else math.inf
    return whole if whole <= 1.5 * exact else rounded  # where ends are rounded, that may take a character


def _numbered(spans: Sequence[RankSpan], names: list[str], scale: float, length: int) -> tuple[str, set[int]]:
    """A row, and the places inside a label."""
    row = [IDLE] * length
    inside: set[int] = set()
    for span, name in zip(spans, names, strict=True):
        start, end = round(span.start * scale), min(length, round(span.end * scale))
        room = end - start
        if room <= 0:
            continue
        text = name if len(name) <= room else name[0]
        row[start:end] = f"{text:{_FILL}<{room}}"
        if room > len(text):
            row[end - 1] = _END
        inside.update(range(start + 1, start + len(text)))
    return "".join(row), inside


def _lettered(
    timeline: Pictured, looks: Looks, letters: dict[str, str], spans: Sequence[RankSpan], columns: int, scale: float
) -> str:
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in spans:
        pieces = looks.pieces(timeline, span)
        letter = COMBINED if len(pieces) > 1 else letters[pieces[0].kind]
        letter = letter.lower() if pieces[0].chunk else letter
        start, end = span.start * scale, min(columns, span.end * scale)
        for column in range(int(start), min(columns, ceil(end))):
            share = shares[column]
            share[letter] = share.get(letter, 0.0) + min(end, column + 1) - max(start, column)
    owed: dict[str, float] = {}  # time of each letter that no character has shown yet
    row = ""
    for share in shares:
        share[IDLE] = max(0.0, 1.0 - sum(share.values()))
        for letter, part in share.items():
            owed[letter] = owed.get(letter, 0.0) + part
        shown = max((c for c in share if share[c] > 1e-9), key=lambda letter: round(owed[letter], 6))
        owed[shown] -= 1.0
        row += shown
    return row


def _axis(start: int, end: int, columns: int, scale: float, makespan: float) -> str:
    """Marks `|` with times; the last band ends with the makespan."""
    if not scale:
        return ""
    step = _nice(_TICK / scale)
    last = f"{seconds_text(makespan)}|" if end >= round(makespan * scale) else ""
    length = min(columns, max(end - start + 1, len(last)))
    room = length - len(last)
    line = ""
    number = ceil(start / scale / step - 1e-9)
    while (at := round(number * step * scale) - start) < room:
        text = f"|{seconds_text(round(number * step, 12))}"
        if at + len(text) < room if last else at + len(text) <= columns:
            line = f"{line:<{at}}{text}"
        number += 1
    return f"{line:<{room}}{last}".rstrip()


def _nice(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... (and of 0.5, 0.2, ...) that is not less.

    >>> _nice(3.0), _nice(0.1), _nice(12.0)
    (5.0, 0.1, 20.0)
    """
    power = 1.0
    while power > least:
        power /= 10
    while power * 10 < least:
        power *= 10
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
