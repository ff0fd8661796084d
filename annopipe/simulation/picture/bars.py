"""The bars of one row of a picture, and the labels inside them.

A lane has a colour; weight gradients are darker and hatched, stalls white with red hatching; a host read is a dark line
with a triangle above it, since most are too short to be seen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from annopipe.simulation.panels import Row
from annopipe.simulation.picture.lettering import Lettering
from annopipe.simulation.picture.sheet import INK
from annopipe.simulation.runs import Run
from annopipe.simulation.wording import one_line, seconds_text, shorten

__all__ = ["STALL", "Palette", "draw_row"]

STALL = "#d92d20"
_LANES = ("#93bfe6", "#f5bd80", "#a3d39c", "#cbb2e3", "#eda9bb", "#c9c48e", "#8fd0cb")
_NO_LANE, _TRACK, _PALE_STALL = "#cfd4db", "#f0f2f5", "#f3aaa3"
_SIZES = (8.5, 7.0)  # of letters, in points: the first that fits is used
_PADDING = 0.06  # inches that a label leaves free in its bar
_TWO_LINES = 0.4  # inches: a higher bar has room for the duration below the label
_LONGEST_LANE = 24  # letters, in the legend
_NARROW = 0.13  # inches: a narrower bar has no room even for one line of letters on its side
_STRIPES = 0.05  # inches: hatching is invisible in a narrower bar


class Palette:
    """The colour of each lane: lanes are sorted, so the same lanes have the same colours in every picture.

    >>> palette = Palette(["F", "B", ""])
    >>> palette.lanes, palette["F"] == Palette(["B", "F"])["F"]
    (('B', 'F'), True)
    """

    def __init__(self, lanes: Iterable[str]) -> None:
        self.lanes = tuple(sorted(set(lanes) - {""}))

    def __getitem__(self, lane: str) -> str:
        return _LANES[self.lanes.index(lane) % len(_LANES)] if lane else _NO_LANE

    def of(self, run: Run) -> str:
        """The colour of a run."""
        colour = self[run.lane]
        return _darker(colour, 0.86) if run.phase == "weight_grad" else colour

    def legend(self, kinds: Iterable[str]) -> Mapping[str, Artist]:
        """A sample of each lane, and for those of "weight_grad", "host" and "wait" that are in `kinds`."""
        found = set(kinds)
        entries: dict[str, Artist] = {
            f"lane {shorten(one_line(lane), _LONGEST_LANE)}": Patch(facecolor=self[lane], edgecolor="white")
            for lane in self.lanes
        }
        others: dict[str, tuple[str, Artist]] = {
            "weight_grad": ("weight gradient", Patch(facecolor="#dddddd", edgecolor="#888888", hatch="/////", lw=0)),
            "wait": ("stall", Patch(facecolor="white", edgecolor=STALL, hatch="xxxx", lw=0.9)),
            "host": ("host read", Line2D([], [], color=INK, marker="v", linestyle="none", markersize=5)),
        }
        return entries | dict(entry for kind, entry in others.items() if kind in found)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row is: its upper edge and height in inches, and how many inches a second is."""

    top: float
    height: float
    scale: float


def draw_row(
    axes: Axes, row: Row, top: float, height: float, end: float, palette: Palette, letters: Lettering, scale: float
) -> None:
    """Draw a row on axes whose vertical unit is the inch and whose horizontal unit is the second.

    `end` is the end of the row's ground, `scale` how many inches a second is.
    """
    place = _Place(top, height, scale)
    axes.broken_barh([(0.0, end)], (top, height), facecolors=_TRACK, linewidth=0, zorder=0)
    _bars(axes, row.runs, place, palette)
    for run in row.runs:
        _label(axes, run, place, letters)


def _bars(axes: Axes, runs: Iterable[Run], place: _Place, palette: Palette) -> None:
    """One collection for all bars of a look: a picture may have thousands."""
    filled: list[Run] = []
    hatched: dict[str, list[Run]] = {}
    others: dict[str, list[Run]] = {"wait": [], "host": []}
    for run in runs:
        if run.kind in others:
            others[run.kind].append(run)
            continue
        filled.append(run)
        if run.phase == "weight_grad" and run.seconds * place.scale > _STRIPES:
            hatched.setdefault(run.lane, []).append(run)
    at = (place.top, place.height)
    # A white edge tells neighbours apart; it would swallow a bar of a pixel or two.
    edges = [0.6 if run.seconds * place.scale > 0.03 else 0.0 for run in filled]
    colours = [palette.of(run) for run in filled]
    axes.broken_barh(_extents(filled), at, facecolors=colours, edgecolors="white", linewidths=edges)
    for lane, those in hatched.items():
        line = _darker(palette[lane], 0.62)
        axes.broken_barh(_extents(those), at, facecolors="none", edgecolors=line, linewidths=0, hatch="/////")
    stalls = _extents(others["wait"])
    wide = _extents(run for run in others["wait"] if run.seconds * place.scale > _STRIPES)
    axes.broken_barh(stalls, at, facecolors="white", linewidths=0)
    axes.broken_barh(wide, at, facecolors="none", edgecolors=_PALE_STALL, linewidths=0, hatch="xxxx")
    axes.broken_barh(stalls, at, facecolors="none", edgecolors=STALL, linewidths=0.9)
    hosts = others["host"]
    axes.broken_barh(_extents(hosts), at, facecolors=INK, edgecolors=INK, linewidths=0.7)
    middles = [(run.start + run.end) / 2 for run in hosts]
    axes.plot(middles, [place.top - 0.03] * len(middles), "v", color=INK, markersize=4, clip_on=False, zorder=4)


def _extents(runs: Iterable[Run]) -> list[tuple[float, float]]:
    return [(run.start, run.seconds) for run in runs]


def _label(axes: Axes, run: Run, place: _Place, letters: Lettering) -> None:
    """What the run is, if there is room; its duration too, if the row is high enough."""
    if run.kind == "host" or run.seconds * place.scale < _NARROW:
        return  # most runs of a long program: nothing is measured for them
    text, size, rotation = _fitting(run, place, letters)
    if not text:
        return
    axes.text(
        (run.start + run.end) / 2,
        place.top + place.height / 2,
        text,
        size=size,
        color=STALL if run.kind == "wait" else INK,
        rotation=rotation,
        ha="center",
        va="center",
        linespacing=1.15,
        parse_math=False,
        # Letters over hatching are hard to read: they get a plain ground.
        bbox=_ground(run),
    )


def _fitting(run: Run, place: _Place, letters: Lettering) -> tuple[str, float, float]:
    """The text that fits into the bar, its size and its rotation in degrees; upright letters where they fit."""
    wide, high = run.seconds * place.scale - _PADDING, place.height - _PADDING
    duration = seconds_text(run.seconds)
    choices = (f"stall {duration}", duration) if run.kind == "wait" else (one_line(run.label),)
    for size in _SIZES:
        for text in choices:
            if letters.width(text, size) <= wide:
                two = run.kind != "wait" and high > _TWO_LINES and letters.width(duration, size) <= wide
                return (f"{text}\n{duration}" if two else text), size, 0.0
    upright = next((text for text in choices if letters.width(text, _SIZES[-1]) <= high), "")
    return upright, _SIZES[-1], 90.0


def _ground(run: Run) -> dict[str, object] | None:
    if run.kind == "wait" or run.phase == "weight_grad":
        return {"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 0.5}
    return None


def _darker(colour: str, share: float) -> str:
    red, green, blue = to_rgb(colour)
    return to_hex((red * share, green * share, blue * share))
