"""The pictures: bars of the rows of a configuration, measured beside simulated; all here that needs matplotlib.

    PP 4 x EP 2 x DP 1, routing skew 1
    annopipe dualpipev, auto  |#########-|         measured, with a whisker from the fastest to the slowest round
                              |=========           simulated
    eager dualpipev           |##############-|
                              0 ms      200 ms     a dashed line at the best eager one

Lengths are inches. The same results give the same bytes.
"""

from collections.abc import Mapping, Sequence
from math import ceil, log2
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from annopipe.simulation.picture import sheet
from annopipe.simulation.picture.sheet import EDGE, FONT, INK, SOFT, Sheet
from annopipe.simulation.ranks.looks import Looks
from benchmarks.moe_page.comparing import best_eager, best_eager_simulated, by_setting
from benchmarks.moe_page.quantities import STEP, Quantity
from benchmarks.moe_page.results import Row, Setting

__all__ = ["RUNTIME_COLOURS", "save"]

# Ours has the blue of a forward, as in every picture of a schedule, what it attaches to its teal; eager is grey.
RUNTIME_COLOURS = {"annopipe": Looks(()).of("F").colour, "attached": Looks(()).of("I").colour, "eager": "#9a9fa8"}
_EAGER_LINE, _GRID = "#d92d20", "#e1e5ea"
_WIDTH, _RIGHT, _TOP, _BOTTOM = 12.0, 1.15, 0.78, 0.1
_HEAD, _PITCH, _TICKS, _SPACE, _NOTE = 0.3, 0.36, 0.3, 0.18, 0.2
_BAR, _THIN = 0.17, 0.10  # of what is measured, and of what is simulated below it
_WIDEST_LABEL = 4.6
_MOST_ROWS = 24  # of a setting; a page has all of them in its table
_Panel = tuple[Setting, list[Row], list[Row]]  # its rows, and those of them that are drawn


def save(path: Path, rows: Sequence[Row], quantity: Quantity, title: str) -> bool:
    """Draw one quantity of the rows of a configuration as PNG; False, and no file, where no row has it."""
    panels = _panels(rows, quantity)
    if not panels:
        return False
    sheet.save(path, lambda: _Paper(panels, quantity, title).figure)
    return True


def _panels(rows: Sequence[Row], quantity: Quantity) -> list[_Panel]:
    found = []
    for setting, those in by_setting(rows).items():
        having = [row for row in those if any(value is not None for value in quantity.of(row))]
        if having:
            found.append((setting, having, having[:_MOST_ROWS]))
    return found


class _Paper(Sheet):
    """The sheet with what all panels share: the room for labels, the words for what varies."""

    def __init__(self, panels: Sequence[_Panel], quantity: Quantity, title: str) -> None:
        heights = [_HEAD + _PITCH * len(drawn) + _TICKS + _SPACE + _NOTE * (drawn != having)
                   for _, having, drawn in panels]  # fmt: skip
        height = _TOP + sum(heights) + _BOTTOM
        super().__init__(_WIDTH, height)
        self._quantity = quantity
        names = [row.name for _, _, drawn in panels for row in drawn]
        self._left = EDGE + 0.12 + min(_WIDEST_LABEL, max(self.letters.width(name, FONT) for name in names))
        self.write(EDGE, height - 0.29, title, 12.0, INK, "bold")
        self.legend(height - 0.56, self._samples([row for _, _, drawn in panels for row in drawn]))
        upper = height - _TOP
        for panel, taken in zip(panels, heights, strict=True):
            self._panel(*panel, upper)
            upper -= taken

    def _samples(self, rows: Sequence[Row]) -> Mapping[str, Artist]:
        found: dict[str, Artist] = {}
        for runtime, colour in RUNTIME_COLOURS.items():
            own = [row for row in rows if row.runtime == runtime]
            kinds = {row.measured.kind for row in own if row.measured and self._quantity.measured(row) is not None}
            if kinds:
                found[f"{runtime}, {' or '.join(sorted(kinds))}"] = Patch(facecolor=colour)
            if any(self._quantity.simulated(row) is not None for row in own):
                # One sample for all runtimes that were measured, too: the line has room for so many.
                name, edge = ("simulated", SOFT) if kinds else (f"{runtime}, simulated", colour)
                found[name] = Patch(facecolor="white", edgecolor=edge, hatch="/////", linewidth=0.8)
        if any(self._quantity.spread(row) for row in rows):
            found["fastest to slowest round"] = Line2D([], [], color=INK, linewidth=1.2, marker="|", markersize=6)
        if self._quantity is STEP:
            if any(row.predicted and row.predicted.bound_s for row in rows):
                found["lower bound"] = Line2D([], [], color=INK, linestyle="none", marker="|", markersize=9)
            if any(row.runtime == "eager" for row in rows):
                found["best eager"] = Line2D([], [], color=_EAGER_LINE, linewidth=1.2, linestyle="--")
        return found

    def _panel(self, setting: Setting, having: Sequence[Row], drawn: Sequence[Row], upper: float) -> None:
        """One setting, from its upper edge down."""
        self.write(EDGE, upper - 0.17, str(setting), 10.0, INK, "bold")
        inside, rows = self.width - self._left - _RIGHT, _PITCH * len(drawn)
        lower = upper - _HEAD - rows
        axes = self.axes(self._left, lower, inside, rows)
        lines = _eager_places(having) if self._quantity is STEP else []
        end = max([*map(self._reach, drawn), *lines]) or 1.0
        axes.set(xlim=(0.0, end), ylim=(rows, 0.0), yticks=[])
        self._ticks(axes, inside, end)
        for number, row in enumerate(drawn):
            self._row(axes, row, number * _PITCH, lower + rows - number * _PITCH, end)
        for place in lines:
            axes.axvline(place, color=_EAGER_LINE, linewidth=1.2, linestyle="--", zorder=5)
        if len(drawn) < len(having):
            text = f"the fastest {len(drawn)} of {len(having)} rows; the table of the page has all of them"
            self.write(self._left, lower - _TICKS - _NOTE + 0.06, text, FONT, SOFT)

    def _reach(self, row: Row) -> float:
        values = [*self._quantity.of(row), *(self._quantity.spread(row) or ())]
        return max(value for value in values if value is not None)

    def _ticks(self, axes: Axes, length: float, end: float) -> None:
        quantity, most = self._quantity, max(3, int(length / 0.9))
        locator = (
            MultipleLocator(2.0 ** ceil(log2(end / most)))
            if quantity.binary
            else MaxNLocator(most, steps=[1, 2, 5, 10])
        )
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity.text(float(f"{value:.12g}"))))
        axes.tick_params(axis="x", labelsize=FONT - 0.5, colors=SOFT, length=3)
        axes.grid(visible=True, axis="x", color=_GRID, linewidth=0.7)

    def _row(self, axes: Axes, row: Row, top: float, upper: float, end: float) -> None:
        """The bars of a row, its name on the left and its number behind the longest bar."""
        quantity = self._quantity
        label = self.letters.clip(row.name, self._left - EDGE - 0.1, FONT)
        self.write(self._left - 0.1 - self.letters.width(label, FONT), upper - _PITCH / 2 - 0.045, label, FONT, INK)
        measured, simulated = quantity.of(row)
        colour, both = RUNTIME_COLOURS[row.runtime], None not in (measured, simulated)
        first = top + (0.03 if both else (_PITCH - _BAR) / 2)
        place, height = (first + _BAR, _THIN) if both else (first, _BAR)
        if measured is not None:
            axes.broken_barh([(0.0, measured)], (first, _BAR), facecolors=colour, zorder=2)
        if simulated is not None:
            look: dict[str, Any] = {"facecolors": "white", "edgecolors": colour, "hatch": "/////", "linewidth": 0.7}
            axes.broken_barh([(0.0, simulated)], (place, height), zorder=2, **look)
        spread = quantity.spread(row)
        if spread:
            middles = [first + _BAR / 2] * 2
            axes.plot(spread, middles, "|-", color=INK, linewidth=1.2, markersize=6, zorder=4, clip_on=False)
        if quantity is STEP and row.predicted and row.predicted.bound_s:
            axes.plot([row.predicted.bound_s] * 2, (place - 0.02, place + height + 0.02), color=INK, lw=1.4, zorder=3)
        shown = measured if measured is not None else simulated
        if shown is not None:
            text = quantity.text(shown)
            # A ground of its own: the line of the best eager step may run through it.
            ground = {"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 0.8}
            x = self._reach(row) + 0.1 * end / (self.width - self._left - _RIGHT)
            axes.text(x, top + _PITCH / 2, text, size=FONT, color=INK, va="center", zorder=6, bbox=ground)


def _eager_places(rows: Sequence[Row]) -> list[float]:
    """The best eager step of each kind of measurement; the simulated one where none was measured."""
    simulated = best_eager_simulated(rows)
    return list(best_eager(rows).values()) or ([] if simulated is None else [simulated])
