"""The whole picture: title and legend, then one panel per timeline, all on one time axis.

    name  makespan, hidden share
    thread  |FFFF|BBB|xx stall xx|FF|     what the issuing thread does; a triangle marks a host read
    comm ep |....|BBBBBBBBBBBB|FFFFF|     the transfers of each process group
            0 ms      10 ms     20 ms
    what is most exposed, and why

Lengths are inches. The figure has a canvas of its own and is drawn in matplotlib's default style whatever the user's
is; settings are as before afterwards. The same timelines give the same bytes.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from annopipe.simulation.panels import Panel, panels_of
from annopipe.simulation.picture.bars import INK, SOFT, STALL, Palette, draw_row
from annopipe.simulation.picture.lettering import Lettering
from annopipe.simulation.wording import one_line, seconds_text

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["draw", "save"]

_DPI = 130
_NARROWEST, _WIDEST, _PER_RUN = 13.0, 42.0, 0.045
_EDGE, _LEFT, _RIGHT, _TOP, _BOTTOM = 0.15, 0.95, 0.3, 0.72, 0.05
_THREAD, _GROUP, _GAP = 0.64, 0.58, 0.08
_HEAD, _TICKS, _NOTE, _SPACE = 0.3, 0.26, 0.18, 0.22
_FONT = 8.5


def save(path: str | PathLike[str], timelines: Mapping[str, "ProgramTimeline"], title: str) -> None:
    """Draw timelines and write the picture as PNG."""
    with style.context(["default", {"hatch.linewidth": 0.6}]):
        draw(timelines, title).savefig(path, format="png", dpi=_DPI, metadata={"Software": None})


def draw(timelines: Mapping[str, "ProgramTimeline"], title: str) -> Figure:
    """The picture as a figure; it gets wider with the number of bars, up to a limit.

    >>> from annopipe.simulation import Task, run
    >>> figure = draw({"one": run([Task("mm", "compute", 1.0)]), "two": run([Task("mm", "compute", 2.0)])}, "title")
    >>> [float(axes.get_xlim()[1]) for axes in figure.axes]
    [2.0, 2.0]
    """
    panels = panels_of(timelines)
    busiest = max((len(panel.rows[0].runs) for panel in panels), default=0)
    width = min(_WIDEST, max(_NARROWEST, _PER_RUN * busiest))
    heights = [_HEAD + _rows_height(panel) + _TICKS + _NOTE * len(panel.notes) + _SPACE for panel in panels]
    height = _TOP + sum(heights) + _BOTTOM
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    sheet = _Sheet(figure, panels)
    sheet.write(_EDGE, height - 0.27, title, 12.0, INK, "bold")
    sheet.legend(height - 0.52)
    upper = height - _TOP
    for panel, taken in zip(panels, heights, strict=True):
        sheet.panel(panel, upper)
        upper -= taken
    return figure


def _rows_height(panel: Panel) -> float:
    return _THREAD + (len(panel.rows) - 1) * (_GROUP + _GAP) + 2 * _GAP


class _Sheet:
    """A figure on which places are given in inches from its lower left corner."""

    def __init__(self, figure: Figure, panels: Sequence[Panel]) -> None:
        self.figure = figure
        self.width, self.height = (float(side) for side in figure.get_size_inches())
        self.letters = Lettering(FigureCanvasAgg(figure))
        self.runs = [run for panel in panels for row in panel.rows for run in row.runs]
        self.palette = Palette(run.lane for run in self.runs)
        self.end = max((panel.makespan for panel in panels), default=0.0) or 1.0
        self.inside = self.width - _LEFT - _RIGHT  # the length of the time axis

    def write(self, x: float, y: float, text: str, size: float, colour: str, weight: str = "normal") -> float:
        """Write a line; returns where it ends."""
        text = self.letters.clip(one_line(text), self.width - x - _EDGE, size)
        self.figure.text(
            x / self.width, y / self.height, text, size=size, color=colour, weight=weight, parse_math=False
        )  # fmt: skip
        return x + self.letters.width(text, size, weight)

    def legend(self, y: float) -> None:
        entries = self.palette.legend([*(run.kind for run in self.runs), *(run.phase for run in self.runs)])
        legend = self.figure.legend(
            list(entries.values()),
            list(entries),
            loc="center left",
            bbox_to_anchor=(_EDGE / self.width, y / self.height),
            ncols=max(1, len(entries)),
            frameon=False,
            fontsize=_FONT,
            borderpad=0.0,
            handlelength=1.8,
            columnspacing=1.6,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)

    def panel(self, panel: Panel, upper: float) -> None:
        """One timeline, from its upper edge down."""
        after = self.write(_EDGE, upper - 0.16, panel.name, 10.0, INK, "bold")
        self.write(after + _EDGE * bool(panel.name), upper - 0.16, panel.headline, 9.0, SOFT)
        rows = _rows_height(panel)
        lower = upper - _HEAD - rows
        axes = self._axes(lower, rows, panel.makespan)
        stalls = [(start, end - start) for start, end in panel.stalls]  # one collection: there may be thousands
        axes.broken_barh(stalls, (0.0, rows), facecolors=STALL, alpha=0.10, linewidth=0, zorder=0.5)
        top, scale = _GAP, self.inside / self.end
        for number, row in enumerate(panel.rows):
            height = _GROUP if number else _THREAD
            draw_row(axes, row, top, height, panel.makespan, self.palette, self.letters, scale)
            label = self.letters.cut(one_line(row.label), _LEFT - 0.25, _FONT)
            x = _LEFT - 0.1 - self.letters.width(label, _FONT)
            self.write(x, lower + rows - top - height / 2 - 0.04, label, _FONT, SOFT)
            top += height + _GAP
        for number, note in enumerate(panel.notes):
            self.write(_LEFT, lower - _TICKS - (number + 0.7) * _NOTE, note, _FONT, INK)

    def _axes(self, lower: float, rows: float, makespan: float) -> Axes:
        box = (_LEFT / self.width, lower / self.height, self.inside / self.width, rows / self.height)
        axes = self.figure.add_axes(box)
        axes.set(xlim=(0.0, self.end), ylim=(rows, 0.0), yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(max(4, int(self.inside / 1.1)), steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(round(seconds, 15))))
        axes.tick_params(axis="x", labelsize=_FONT - 0.5, colors=SOFT, length=3)
        axes.grid(visible=True, axis="x", color="#e1e5ea", linewidth=0.7)
        axes.axvline(makespan, color=SOFT, linewidth=1.2)
        return axes
