"""A schedule's timeline for a terminal: a row per rank, with its bubble and its peak of memory."""

import textwrap

from annopipe.errors import AnnopipeError
from annopipe.simulation.ranks.cells import COMBINED, IDLE, Band, chunk_letter, letter_band, letters_of, number_bands
from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.summary import key_numbers
from annopipe.simulation.wording import amount_text, clip, one_line, seconds_text

__all__ = ["render"]

_NARROWEST = 40


def render(timeline: Pictured, width: int = 100) -> str:
    """Draw a timeline in at most `width` columns: every microbatch where that is readable, else one letter per time.

    Raises AnnopipeError for a width below 40.

    >>> import annopipe as ap
    >>> orders = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    >>> schedule = ap.Schedule.of(ap.placement.linear(2), 2, orders)
    >>> print(render(ap.simulate(schedule, ap.costs.table(F=1.0, B=2.0))))
    2 ranks
    makespan 9 s   bubble 33.3%   peak memory 2   exposed communication 0 s
    <BLANKLINE>
    rank bubble  peak
       0  33.3%     2  0 1 ....B0- ..B1-
       1  33.3%     1  ..0 B0- 1 B1- ....
                       |0 s           9 s|
    <BLANKLINE>
    1 forward of microbatch 1   B1 backward   . idle
    """
    if width < _NARROWEST:
        raise AnnopipeError(f"cannot draw {timeline.name!r} in {width} columns: give a width of {_NARROWEST} or more")
    looks = Looks([timeline])
    margins = _margins(timeline)
    columns = width - len(margins[0])
    bands = number_bands(timeline, looks, columns)
    lettered = bands is None
    if bands is None:
        bands = [letter_band(timeline, looks, columns)]
    lines = [*_headline(timeline, width), ""]
    if timeline.makespan:
        for number, band in enumerate(bands):
            lines += _band_lines(band, margins, first=number == 0)
        lines += ["", *_legend(timeline, looks, bands, columns, width, lettered=lettered)]
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def _headline(timeline: Pictured, width: int) -> list[str]:
    ranks = f"{timeline.ranks} rank{'s' * (timeline.ranks != 1)}"
    named = f"{one_line(timeline.name)}, {ranks}" if timeline.name else ranks
    numbers = [f"{name} {value}" for name, value in key_numbers(timeline)]
    return [clip(named, width), *_wrapped(numbers, width)]


def _wrapped(entries: list[str], width: int) -> list[str]:
    """Entries on as many lines as they need; none is broken over two."""
    joined = "   ".join(entry.replace(" ", "\0") for entry in entries)
    return [line.replace("\0", " ") for line in textwrap.wrap(joined, width, break_on_hyphens=False)]


def _margins(timeline: Pictured) -> list[str]:
    """What stands left of the drawing: a head, then rank, bubble and peak of memory of each rank."""
    rows = [("rank", "bubble", "peak")]
    for rank, (bubble, peak) in enumerate(zip(timeline.bubbles, timeline.peaks, strict=True)):
        rows.append((str(rank), f"{bubble:.1%}", amount_text(peak)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{row[0]:>{widths[0]}} {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  " for row in rows]


def _band_lines(band: Band, margins: list[str], *, first: bool) -> list[str]:
    blank = " " * len(margins[0])
    rank = max(4, len(str(len(margins) - 2)))
    # Bubble and memory stand in the first band; further ones repeat the rank.
    left = margins[1:] if first else [f"{number:>{rank}}".ljust(len(blank)) for number in range(len(margins) - 1)]
    head = [margins[0]] if first else [""]
    rows = [margin + row for margin, row in zip(left, band.rows, strict=True)]
    return [*head, *rows, blank + band.axis]


def _legend(
    timeline: Pictured, looks: Looks, bands: list[Band], columns: int, width: int, *, lettered: bool
) -> list[str]:
    letters = letters_of(looks)
    entries = []
    if lettered:
        entries.append(
            f"a character is {seconds_text(timeline.makespan / columns)}; letters in proportion to their time"
        )
    pieces = (piece for row in timeline.spans for span in row for piece in looks.pieces(timeline, span))
    numbered = set() if lettered else {piece.kind for piece in pieces if piece.microbatch is not None}
    for kind in looks.kinds:
        word = looks.of(kind).word
        if lettered or kind not in numbered:
            entries.append(f"{letters[kind]} {word}")
        else:
            entries.append(f"1 {word} of microbatch 1" if kind == "F" else f"{letters[kind]}1 {word}")
    if any(span.parts for row in timeline.spans for span in row):
        entries.append(f"{COMBINED} run together")
    if looks.lanes and not lettered:
        entries.append(f"/{looks.lanes[0]} as {looks.lanes[0]} nano-batches")
    if looks.chunks > 1 and lettered:
        entries.append("small letters: later stages of a rank")
    elif looks.chunks > 1:
        entries.append(f"{chunk_letter(0)} to {chunk_letter(looks.chunks - 1)}: the stages of a rank")
    if any(IDLE in row for band in bands for row in band.rows):
        entries.append(f"{IDLE} idle")
    return _wrapped(entries, width)
