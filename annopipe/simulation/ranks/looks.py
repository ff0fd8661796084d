"""How the actions of a schedule look everywhere: the one table of colours and words, and what a combination shows.

Forward is blue, full backward green, backward-input teal, backward-weight ochre. Later stages of a rank are paler.
Operations that users add have colours of their own and are hatched. What runs as nano-batches is cut into lanes.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import RankSpan

__all__ = ["Look", "Looks", "Piece"]

_WORDS = {
    "F": "forward",
    "B": "backward",
    "I": "backward-input",
    "W": "backward-weight",
    "UNSHARD": "unshard",
    "RESHARD": "reshard",
    "REDUCE_GRAD": "reduce-grad",
}
_COLOURS = {
    "F": "#6a9fd8",
    "B": "#74b76f",
    "I": "#4fb3ac",
    "W": "#e0b14f",
    "UNSHARD": "#a68bc9",
    "RESHARD": "#c9b8df",
    "REDUCE_GRAD": "#d98a9b",
}
_OTHERS = ("#d98958", "#9a9fa8", "#c47fb0", "#a9a35c", "#7f8fc4")
_PALEST = 0.62  # how far the last stage of a rank is on the way to white
_ORDER = tuple(_WORDS)
_PART = re.compile(r"(\d+)([A-Z_]+)(\d+)?(?:/(\d+))?")


@dataclass(frozen=True, slots=True)
class Piece:
    """One action inside a span: the span's own, or one part of a combination."""

    kind: str
    stage: int
    microbatch: int | None
    chunk: int
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Look:
    """How a kind of action on the `chunk`-th stage of its rank looks, as so many nano-batches."""

    kind: str
    chunk: int
    word: str
    colour: str
    hatched: bool
    lanes: int = 1


class Looks:
    """The looks of what timelines contain: the same kinds have the same looks in every picture.

    Attributes:
        kinds: every kind of action in the timelines, forward first; parts of combinations count, combinations do not.
        chunks: the largest number of stages on one rank.
        lanes: the numbers of nano-batches that occur, above 1.
    """

    def __init__(self, timelines: Iterable[Pictured]) -> None:
        every = list(timelines)
        self._chunk_of = {id(timeline): _chunks(timeline) for timeline in every}
        found: set[str] = set()
        lanes: set[int] = set()
        for timeline in every:
            for row in timeline.spans:
                found.update(span.kind for span in row if not span.parts)
                found.update(piece.kind for span in row if span.parts for piece in self.pieces(timeline, span))
                lanes.update(_lanes(text) for span in row if "/" in span.text for text in span.parts or (span.text,))
        self.lanes = tuple(sorted(lanes - {1}))
        self.kinds = sorted(found, key=lambda kind: (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind))
        self.chunks = 1 + max((n for ranks in self._chunk_of.values() for n in ranks.values()), default=0)
        self._looks: dict[tuple[str, int, int], Look] = {}
        self._others = [kind for kind in self.kinds if kind not in _WORDS]

    def pieces(self, timeline: Pictured, span: RankSpan) -> tuple[Piece, ...]:
        """What runs in a span: one piece, or several for a combination."""
        if not span.parts:
            return (Piece(span.kind, span.stage, span.microbatch, span.chunk, _lanes(span.text)),)
        chunk_of = self._chunk_of[id(timeline)]
        found = []
        for part in span.parts:
            match = _PART.fullmatch(part)
            if match:
                stage, microbatch = int(match[1]), None if match[3] is None else int(match[3])
                chunk = chunk_of.get((span.rank, stage), 0)
                found.append(Piece(match[2], stage, microbatch, chunk, int(match[4] or 1)))
            else:
                found.append(Piece(part, span.stage, None, span.chunk))
        return tuple(found)

    def of(self, kind: str, chunk: int = 0, lanes: int = 1) -> Look:
        """The look of a kind on the `chunk`-th stage of a rank, as so many nano-batches."""
        look = self._looks.get((kind, chunk, lanes))
        if look is None:
            own = _COLOURS.get(kind) or _OTHERS[self._others.index(kind) % len(_OTHERS)]
            pale = _PALEST * chunk / (self.chunks - 1) if self.chunks > 1 else 0.0
            word = _WORDS.get(kind) or kind.lower().replace("_", " ")
            look = Look(kind, chunk, word, _paler(own, pale), kind not in _WORDS, lanes)
            self._looks[kind, chunk, lanes] = look
        return look


def _lanes(text: str) -> int:
    match = _PART.fullmatch(text)
    return int(match[4] or 1) if match else 1


def _chunks(timeline: Pictured) -> Mapping[tuple[int, int], int]:
    """The how-manieth of its rank each stage is; of a stage met only inside combinations, by its number."""
    known: dict[tuple[int, int], int] = {}
    inside: set[tuple[int, int]] = set()
    for rank, row in enumerate(timeline.spans):
        for span in row:
            known[rank, span.stage] = span.chunk
            if span.parts:
                inside.update((rank, int(match[1])) for match in map(_PART.fullmatch, span.parts) if match)
    for rank, stage in sorted(inside - known.keys()):
        known[rank, stage] = sum(1 for r, s in known if r == rank and s < stage)
    return known


def _paler(colour: str, share: float) -> str:
    """A colour on its way to white.

    >>> _paler("#000000", 0.5), _paler("#4080c0", 0.0)
    ('#808080', '#4080c0')
    """
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
