"""Patterns as text and as values.

    pattern   step ; step ; ...        one step after the other, for each layer anew
    step      piece | piece | ...      together: what communicates is launched first, the rest computes beside it
    piece     LANE.region[.W]          the region's nodes in that lane; .W: its weight gradients

    B.combine | F.attention ; F.dispatch | B.experts ; B.experts.W ; B.dispatch | F.experts

A region is one or more components of a region's path ("dispatch", "moe/dispatch"). The lane of a nano-batch has its
number behind the lane of its graph, "F0"; of a graph alone it is the number, "0". Line breaks count as spaces, and a
``;`` may follow the last step. ``parse(str(pattern)) == pattern``.
"""

import dataclasses
import re

from annopipe.errors import OrderError

__all__ = ["Pattern", "PatternError", "Piece", "parse"]

_PIECE = re.compile(r"(?P<lane>[A-Za-z]\w*|\d+)\.(?P<region>[\w\-\[\]]+(?:/[\w\-\[\]]+)*)(?P<weights>\.W)?")
_FOREIGN = re.compile(r"[^\w\-\[\]/.;|\s]")
_FORM = "a piece is LANE.region or LANE.region.W, such as F.attention or B.experts.W"


class PatternError(OrderError):
    """A pattern that cannot be used; the message shows the place."""

    def __init__(self, text: str, start: int, end: int, problem: str) -> None:
        shown = re.sub(r"\s", " ", text)
        caret = " " * start + "^" * max(1, end - start)
        super().__init__(f"pattern, column {start + 1}: {problem}\n  {shown}\n  {caret}")
        self._made_of = text, start, end, problem

    def __reduce__(self) -> tuple[type["PatternError"], tuple[str, int, int, str]]:
        """Pickled as what it is made of, so that it comes back from a process pool."""
        return type(self), self._made_of


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One region of one lane; ``weights``: its weight gradients only. ``start``, ``end``: its place in the text.

    >>> str(Piece("B", "experts", weights=True))
    'B.experts.W'
    """

    lane: str
    region: str
    weights: bool = False
    start: int = dataclasses.field(default=0, compare=False)
    end: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.lane}.{self.region}{'.W' if self.weights else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """Steps of pieces, and the text they came from, for messages.

    >>> str(Pattern(((Piece("B", "combine"), Piece("F", "attention")), (Piece("B", "experts"),))))
    'B.combine | F.attention ; B.experts'
    """

    steps: tuple[tuple[Piece, ...], ...]
    text: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return " ; ".join(" | ".join(map(str, step)) for step in self.steps)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces, in order."""
        return tuple(piece for step in self.steps for piece in step)

    def error(self, piece: Piece, problem: str) -> PatternError:
        """The error that shows ``piece`` in the text."""
        return PatternError(self.text or str(self), piece.start, piece.end, problem)


def parse(text: str) -> Pattern:
    """Read a pattern.

    Raises:
        PatternError: the text is no pattern; the message shows where it stops being one.

    >>> parse("B.combine|F.attention; B.experts.W ;").steps[1]
    (Piece(lane='B', region='experts', weights=True, start=23, end=34),)
    """
    if foreign := _FOREIGN.search(text):
        raise PatternError(
            text, *foreign.span(), f"{foreign[0]!r} has no meaning; there are ';' for next and '|' for together"
        )
    if not text.strip():
        raise PatternError(text, 0, len(text), f"there is no piece; {_FORM}")
    steps = _split(text, ";", 0)
    if len(steps) > 1 and not steps[-1][0].strip():
        steps.pop()
    pattern = Pattern(tuple(_step(text, *step) for step in steps), text)
    seen: set[Piece] = set()
    for piece in pattern.pieces:
        if piece in seen:
            raise pattern.error(piece, f"{piece} is there twice; the pattern is applied to each layer anew")
        seen.add(piece)
    return pattern


def _step(whole: str, text: str, start: int) -> tuple[Piece, ...]:
    if not text.strip():
        raise PatternError(whole, start, start + len(text), "a step without a piece; leave out one ';'")
    pieces = _split(text, "|", start)
    for part, at in pieces:
        if not part.strip():
            raise PatternError(whole, at, at + len(part), "a piece is missing beside '|'")
    return tuple(_piece(whole, *piece) for piece in pieces)


def _piece(whole: str, text: str, start: int) -> Piece:
    start += len(text) - len(text.lstrip())
    text = text.strip()
    end = start + len(text)
    if gap := re.search(r"\s+", text):
        at = start + gap.start()
        raise PatternError(whole, at, start + gap.end(), "two pieces in a row; put ';' or '|' between them")
    found = _PIECE.fullmatch(text)
    if found is not None:
        return Piece(found["lane"], found["region"], bool(found["weights"]), start, end)
    lane, dot, rest = text.partition(".")
    region, suffix_dot, suffix = rest.partition(".")
    if not dot:
        raise PatternError(whole, start, end, f"{text!r} has no lane; {_FORM}")
    if not re.fullmatch(r"[A-Za-z]\w*|\d+", lane):
        raise PatternError(whole, start, start + max(1, len(lane)), f"{lane!r} is no lane; {_FORM}")
    if suffix_dot and suffix != "W":
        at = start + len(lane) + 1 + len(region) + 1
        raise PatternError(whole, at, end, f"{suffix!r} is unknown; only .W, weight gradients, may follow a region")
    raise PatternError(whole, start + len(lane) + 1, end, f"{region!r} is no region; {_FORM}")


def _split(text: str, separator: str, start: int) -> list[tuple[str, int]]:
    """The parts between separators, each with its place in the whole text."""
    parts = []
    for part in text.split(separator):
        parts.append((part, start))
        start += len(part) + 1
    return parts
