"""The picture of schedules: title and legend, then per schedule its rows and its memory, all on one time axis.

    name  makespan, bubble, peak memory             bubble  peak
    rank 0  |0|1|2|3|        |  0 |4|  1 |5|          27%     4
    rank 1    |0|1|2|     |  0 |3|  1 |4|             27%     3
    memory  the curve of each rank
            0 s       10 s       20 s

Lengths are inches. The same timelines give the same bytes, whatever the user's settings.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike

from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from annopipe.simulation.picture import sheet
from annopipe.simulation.picture.boxes import (
    HATCH,
    HATCH_LINE,
    TRACK,
    Grid,
    draw_boxes,
    draw_messages,
    draw_mixed,
    draw_path,
)
from annopipe.simulation.picture.sheet import EDGE, FONT, INK, SOFT, Sheet
from annopipe.simulation.ranks.curves import settled
from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.summary import key_numbers
from annopipe.simulation.wording import amount_text

__all__ = ["draw", "save"]

_NARROWEST, _WIDEST, _SQUARE = 12.0, 30.0, 0.17
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 1.35, 0.78, 0.05
_HEAD, _BETWEEN, _MEMORY, _TICKS, _SPACE = 0.34, 0.1, 0.95, 0.26, 0.24
_PITCHES = ((8, 0.34), (16, 0.27), (32, 0.19))  # up to so many ranks, that far from row to row
_DENSE_PITCH, _COMBINED = 0.1, 1.25
_LEAST_BOX = 0.03  # inches: boxes narrower than this on the average cannot be told apart
_MOST_MESSAGES = 400
_LABEL = 0.15  # inches from one label on the left to the next, at least
_MOST_CURVES = 8  # curves that are named one by one


def save(path: str | PathLike[str], timelines: Mapping[str, Pictured], title: str) -> None:
    """Draw schedules and write the picture as PNG."""
    sheet.save(path, lambda: draw(timelines, title))


def draw(timelines: Mapping[str, Pictured], title: str) -> Figure:
    """The picture as a figure; it gets wider with the number of actions, up to a limit."""
    width = _width(timelines.values())
    heights = [_HEAD + _rows(t) + _BETWEEN + _MEMORY + _TICKS + _SPACE for t in timelines.values()]
    height = _TOP + sum(heights) + _BOTTOM
    paper = _Paper(width, height, timelines)
    paper.write(EDGE, height - 0.29, title, 12.0, INK, "bold")
    paper.legend(height - 0.56, paper.samples(timelines))
    upper = height - _TOP
    for (name, timeline), taken in zip(timelines.items(), heights, strict=True):
        paper.schedule(name, timeline, upper)
        upper -= taken
    return paper.figure


def _width(timelines: Iterable[Pictured]) -> float:
    """Wide enough for a number in the shortest computation, if that is not wider than a wide screen."""
    width = _NARROWEST
    for timeline in timelines:
        busiest = max(map(len, timeline.spans), default=0)
        if busiest:
            room = _LEFT + _RIGHT + 1.4 * busiest * _SQUARE
            width = max(width, room if room <= _WIDEST else min(_WIDEST, 16.0))
    return width


def _pitch(timeline: Pictured) -> float:
    pitch = next((pitch for most, pitch in _PITCHES if timeline.ranks <= most), _DENSE_PITCH)
    combined = any(span.parts for row in timeline.spans for span in row)
    return pitch * _COMBINED if combined and pitch > _DENSE_PITCH else pitch


def _rows(timeline: Pictured) -> float:
    return _pitch(timeline) * timeline.ranks


class _Paper(Sheet):
    """The sheet with what all schedules share: the colours and the end of the time axis."""

    def __init__(self, width: float, height: float, timelines: Mapping[str, Pictured]) -> None:
        super().__init__(width, height)
        self.looks = Looks(timelines.values())
        self.end = max((timeline.makespan for timeline in timelines.values()), default=0.0) or 1.0
        self.inside = self.width - _LEFT - _RIGHT  # the length of the time axis

    def samples(self, timelines: Mapping[str, Pictured]) -> dict[str, Artist]:
        """What the legend shows."""
        entries: dict[str, Artist] = {}
        for kind in self.looks.kinds:
            look = self.looks.of(kind)
            hatch = {"hatch": HATCH, "edgecolor": HATCH_LINE, "lw": 0} if look.hatched else {"edgecolor": "white"}
            entries[look.word] = Patch(facecolor=look.colour, **hatch)
        if self.looks.chunks > 1:
            pale = self.looks.of(self.looks.kinds[0], self.looks.chunks - 1).colour
            entries["paler: later stages of the rank"] = Patch(facecolor=pale, edgecolor="white")
        if self.looks.lanes:
            colour = self.looks.of(self.looks.kinds[0]).colour
            entries["cut: nano-batches"] = Patch(facecolor=colour, edgecolor="white", hatch="---", lw=0)
        entries["idle"] = Patch(facecolor=TRACK, edgecolor="white")
        if any(timeline.critical_path for timeline in timelines.values()):
            entries["critical path"] = Patch(facecolor="none", edgecolor=INK, lw=1.1)
        if any(_shows_messages(timeline) for timeline in timelines.values()):
            entries["message"] = Line2D([], [], color=SOFT, lw=0.8, marker=".", markersize=3, markevery=[1])
        return entries

    def schedule(self, name: str, timeline: Pictured, upper: float) -> None:
        """One schedule, from its upper edge down."""
        after = self.write(EDGE, upper - 0.17, name, 10.0, INK, "bold")
        numbers = "    ".join(f"{what} {value}" for what, value in key_numbers(timeline))
        if not self._in_boxes(timeline):
            numbers += "    (boxes are too narrow to draw: each pixel has the mean colour of what runs)"
        self.write(after + EDGE * bool(name), upper - 0.17, numbers, 9.0, SOFT)
        rows = _rows(timeline)
        lower = upper - _HEAD - rows
        axes = self.axes(_LEFT, lower, self.inside, rows)
        axes.set(ylim=(rows, 0.0), yticks=[])
        self.time_axis(axes, self.end, timeline.makespan, self.inside)
        axes.tick_params(axis="x", length=0, labelbottom=False)
        self._fill(axes, timeline)
        self._labels(timeline, upper - _HEAD)
        self._memory(timeline, lower - _BETWEEN - _MEMORY)

    def _in_boxes(self, timeline: Pictured) -> bool:
        busiest = max(map(len, timeline.spans), default=0)
        return timeline.makespan * self.inside / self.end >= _LEAST_BOX * busiest

    def _fill(self, axes: Axes, timeline: Pictured) -> None:
        if not timeline.makespan:
            return
        pitch, scale = _pitch(timeline), self.inside / self.end
        grid = Grid(pitch * 0.86 if pitch > _DENSE_PITCH else pitch, pitch, scale)
        boxes = self._in_boxes(timeline)
        if boxes:
            draw_boxes(axes, timeline, self.looks, grid, self.letters)
        else:
            draw_mixed(axes, timeline, self.looks, grid)
        if boxes and _shows_messages(timeline):
            draw_messages(axes, timeline, grid)
        draw_path(axes, timeline, grid, outlined=boxes)
        axes.set(xlim=(0.0, self.end), ylim=(pitch * timeline.ranks, 0.0))

    def _labels(self, timeline: Pictured, upper: float) -> None:
        """The ranks on the left, bubble and peak of memory on the right; not all where there are many."""
        pitch = _pitch(timeline)
        step = next(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, timeline.ranks) if n * pitch >= _LABEL or n > 256)
        right = self.width - _RIGHT
        for x, text in ((right + 0.55, "bubble"), (right + 1.15, "peak")):
            self._right(x, upper + 0.06, text)
        for rank in range(0, timeline.ranks, step):
            y = upper - (rank + 0.5) * pitch - 0.04
            self._right(_LEFT - 0.1, y, f"rank {rank}")
            self._right(right + 0.55, y, f"{timeline.bubbles[rank]:.1%}")
            self._right(right + 1.15, y, amount_text(timeline.peaks[rank]))

    def _right(self, x: float, y: float, text: str) -> None:
        self.write(x - self.letters.width(text, FONT), y, text, FONT, SOFT)

    def _memory(self, timeline: Pictured, lower: float) -> None:
        axes = self.axes(_LEFT, lower, self.inside, _MEMORY)
        self.time_axis(axes, self.end, timeline.makespan, self.inside)
        axes.set(ylim=(0.0, (timeline.peak_memory or 1.0) * 1.08))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=timeline.peak_memory >= 3))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: amount_text(amount)))
        axes.tick_params(axis="y", labelsize=FONT - 0.5, colors=SOFT, length=0)
        axes.grid(visible=True, axis="y", color="#e1e5ea", linewidth=0.7)
        colours = [_curve_colour(rank, timeline.ranks) for rank in range(timeline.ranks)]
        curves = [_corners(steps, timeline.makespan) for steps in timeline.memory]
        thin = 1.4 if timeline.ranks <= _MOST_CURVES else 0.8
        axes.add_collection(LineCollection(curves, colors=colours, linewidths=thin), autolim=False)
        self.write(EDGE, lower + _MEMORY / 2 + 0.02, "memory", FONT, SOFT)
        few = timeline.ranks <= _MOST_CURVES
        named = range(timeline.ranks) if few else (0, timeline.ranks // 2, timeline.ranks - 1)
        for number, rank in enumerate(named):
            y = lower + _MEMORY - 0.1 - number * min(0.14, _MEMORY / len(named))
            self.write(self.width - _RIGHT + 0.14, y, f"rank {rank}", FONT - 1, colours[rank], "bold")


def _shows_messages(timeline: Pictured) -> bool:
    """Only messages that take time are worth a line, and only a few of them."""
    few = 0 < len(timeline.messages) <= _MOST_MESSAGES
    return few and any(message.arrival > message.start for message in timeline.messages)


def _curve_colour(rank: int, ranks: int) -> str:
    return to_hex(colormaps["viridis"](0.82 * rank / max(1, ranks - 1)))


def _corners(steps: Sequence[tuple[float, float]], makespan: float) -> list[tuple[float, float]]:
    """The corners of a curve that keeps each amount until the next."""
    corners: list[tuple[float, float]] = []
    for time, amount in settled(steps):
        if corners:
            corners.append((time, corners[-1][1]))
        corners.append((time, amount))
    return [*corners, (makespan, corners[-1][1])] if corners else []
