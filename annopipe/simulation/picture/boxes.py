"""The rows of a schedule's picture: boxes with microbatch numbers, or mixed colours where boxes cannot be told apart.

Axes have the second as their horizontal unit and the inch, downwards, as their vertical unit.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from annopipe.simulation.picture.lettering import Lettering
from annopipe.simulation.picture.sheet import DPI, INK, SOFT
from annopipe.simulation.ranks.looks import Look, Looks, Piece
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import RankSpan

__all__ = ["HATCH", "HATCH_LINE", "TRACK", "Grid", "draw_boxes", "draw_messages", "draw_mixed", "draw_path"]

TRACK, HATCH, HATCH_LINE = "#f0f2f5", "/////", "#5d667466"
_SIZES = (9.0, 8.0, 7.0, 6.0, 5.0)  # of letters, in points: the first that fits is used
_LETTER = 0.0098  # inches of height per point that digits need
_EDGED = 0.04  # inches: the edge would swallow a narrower box
_Corners = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Where rows are: `height` and distance of rows in inches, and inches per second."""

    height: float
    pitch: float
    scale: float

    def top(self, rank: int) -> float:
        """The upper edge of a rank's boxes."""
        return rank * self.pitch + (self.pitch - self.height) / 2

    def middle(self, rank: int) -> float:
        """Half-way down a rank's boxes."""
        return (rank + 0.5) * self.pitch


def draw_boxes(axes: Axes, timeline: Pictured, looks: Looks, grid: Grid, letters: Lettering) -> None:
    """A box per action; a combination is split into its parts, one above the other, a part into its nano-batches."""
    _grounds(axes, timeline, grid)
    filled: dict[Look, list[_Corners]] = {}
    for rank, row in enumerate(timeline.spans):
        for span in row:
            pieces = looks.pieces(timeline, span)
            height = grid.height / len(pieces)
            for number, piece in enumerate(pieces):
                top = grid.top(rank) + number * height
                lane = height / piece.lanes
                boxes = [_corners(span, top + place * lane, lane) for place in range(piece.lanes)]
                filled.setdefault(looks.of(piece.kind, piece.chunk), []).extend(boxes)
                _number(axes, span, piece, top + height / 2, height, grid, letters)
    for look, corners in filled.items():
        edges = [0.6 if (box[1][0] - box[0][0]) * grid.scale > _EDGED else 0.0 for box in corners]
        axes.add_collection(
            PolyCollection(corners, facecolors=look.colour, edgecolors="white", linewidths=edges), autolim=False
        )
        if look.hatched:
            hatch = PolyCollection(corners, facecolors="none", edgecolors=HATCH_LINE, linewidths=0, hatch=HATCH)
            axes.add_collection(hatch, autolim=False)


def draw_mixed(axes: Axes, timeline: Pictured, looks: Looks, grid: Grid) -> None:
    """Each pixel in the mean of the colours of what runs in its time."""
    columns = max(1, ceil(timeline.makespan * grid.scale * DPI))
    scale = columns / timeline.makespan
    ground = np.array(_rgb(TRACK))
    image = np.empty((timeline.ranks, columns, 3))
    for rank, row in enumerate(timeline.spans):
        colours: dict[str, list[float]] = {}  # per colour, how much of each column it has
        for span in row:
            pieces = looks.pieces(timeline, span)
            start, end = span.start * scale, min(columns, span.end * scale)
            for piece in pieces:
                shares = colours.setdefault(looks.of(piece.kind, piece.chunk).colour, [0.0] * columns)
                first, last = int(start), min(columns, ceil(end)) - 1
                part = 1.0 / len(pieces)
                if first == last:
                    shares[first] += (end - start) * part
                else:
                    shares[first] += (first + 1 - start) * part
                    shares[last] += (end - last) * part
                    for column in range(first + 1, last):
                        shares[column] += part
        image[rank] = ground
        for colour, shares in colours.items():
            image[rank] += np.outer(shares, np.array(_rgb(colour)) - ground)
    extent = (0.0, timeline.makespan, grid.pitch * timeline.ranks, 0.0)
    axes.imshow(image.clip(0.0, 1.0), extent=extent, aspect="auto", interpolation="nearest", zorder=1)


def draw_path(axes: Axes, timeline: Pictured, grid: Grid, *, outlined: bool) -> None:
    """The critical path: its boxes outlined, or a line through the ranks that it visits."""
    spans = [part for part in timeline.critical_path if isinstance(part, RankSpan)]
    if outlined:
        corners = [_corners(span, grid.top(span.rank), grid.height) for span in spans]
        outline = PolyCollection(corners, facecolors="none", edgecolors=INK, linewidths=1.1, zorder=4)
        axes.add_collection(outline, autolim=False)
        jumps = [(a, b) for a, b in pairwise(spans) if a.rank != b.rank and b.start > a.end]
        lines = [_line(grid, a.rank, a.end, b.rank, b.start) for a, b in jumps]
    else:
        corners_of_line = [(time, grid.middle(span.rank)) for span in spans for time in (span.start, span.end)]
        lines = [corners_of_line] if spans else []
    axes.add_collection(LineCollection(lines, colors=INK, linewidths=0.9, zorder=4), autolim=False)


def draw_messages(axes: Axes, timeline: Pictured, grid: Grid) -> None:
    """A thin line from where a message starts to where it can be used, with a dot there."""
    lines = [_line(grid, m.sender, m.start, m.receiver, m.arrival) for m in timeline.messages]
    axes.add_collection(LineCollection(lines, colors=SOFT, linewidths=0.7, zorder=3), autolim=False)
    axes.plot([line[1][0] for line in lines], [line[1][1] for line in lines], ".", color=SOFT, markersize=3, zorder=3)


def _line(grid: Grid, sender: int, start: float, receiver: int, end: float) -> _Corners:
    """From the edge of one rank's boxes to the near edge of another's."""
    down = grid.height / 2 if receiver > sender else -grid.height / 2
    return [(start, grid.middle(sender) + down), (end, grid.middle(receiver) - down)]


def _grounds(axes: Axes, timeline: Pictured, grid: Grid) -> None:
    grounds = []
    for rank in range(timeline.ranks):
        top, end = grid.top(rank), timeline.makespan
        grounds.append([(0.0, top), (end, top), (end, top + grid.height), (0.0, top + grid.height)])
    axes.add_collection(PolyCollection(grounds, facecolors=TRACK, linewidths=0, zorder=0), autolim=False)


def _corners(span: RankSpan, top: float, height: float) -> _Corners:
    return [(span.start, top), (span.end, top), (span.end, top + height), (span.start, top + height)]


def _number(
    axes: Axes, span: RankSpan, piece: Piece, middle: float, height: float, grid: Grid, letters: Lettering
) -> None:
    """The microbatch, if there is room; every box of a kind has letters of the same size when they are as long."""
    if piece.microbatch is None:
        return
    room, text = (span.end - span.start) * grid.scale - 0.03, str(piece.microbatch)
    if room < 0.03:
        return
    size = next((s for s in _SIZES if s * _LETTER + 0.02 <= height and letters.width(text, s) <= room), None)
    if size is not None:
        axes.text(
            (span.start + span.end) / 2, middle, text, size=size, color=INK, ha="center", va="center_baseline", zorder=5
        )  # fmt: skip


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
