"""The whole picture: title and legend, then one panel per timeline, all on one time axis.

    name  makespan, hidden share
    thread  |FFFF|BBB|xx stall xx|FF|     what the issuing thread does; a triangle marks a host read
    comm ep |....|BBBBBBBBBBBB|FFFFF|     the transfers of each process group
            0 ms      10 ms     20 ms
    what is most exposed, and why

Lengths are inches. The same timelines give the same bytes, whatever the user's settings.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from annopipe.simulation.panels import Panel, panels_of
from annopipe.simulation.picture import sheet
from annopipe.simulation.picture.bars import STALL, Palette, draw_row
from annopipe.simulation.picture.sheet import EDGE, FONT, INK, SOFT, Sheet
from annopipe.simulation.wording import one_line

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["draw", "save"]

_NARROWEST, _WIDEST, _PER_RUN = 13.0, 42.0, 0.045
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 0.3, 0.72, 0.05
_THREAD, _GROUP, _GAP = 0.64, 0.58, 0.08
_HEAD, _TICKS, _NOTE, _SPACE = 0.3, 0.26, 0.18, 0.22


def save(path: str | PathLike[str], timelines: Mapping[str, "ProgramTimeline"], title: str) -> None:
    """Draw timelines and write the picture as PNG."""
    sheet.save(path, lambda: draw(timelines, title))


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
    paper = _Paper(width, height, panels)
    paper.write(EDGE, height - 0.27, title, 12.0, INK, "bold")
    paper.legend(height - 0.52, paper.palette.legend(paper.shown))
    upper = height - _TOP
    for panel, taken in zip(panels, heights, strict=True):
        paper.panel(panel, upper)
        upper -= taken
    return paper.figure


def _rows_height(panel: Panel) -> float:
    return _THREAD + (len(panel.rows) - 1) * (_GROUP + _GAP) + 2 * _GAP


class _Paper(Sheet):
    """The sheet with what all panels share: the colours and the end of the time axis."""

    def __init__(self, width: float, height: float, panels: Sequence[Panel]) -> None:
        super().__init__(width, height)
        runs = [run for panel in panels for row in panel.rows for run in row.runs]
        self.shown = [*(run.kind for run in runs), *(run.phase for run in runs)]
        self.palette = Palette(run.lane for run in runs)
        self.end = max((panel.makespan for panel in panels), default=0.0) or 1.0
        self.inside = self.width - _LEFT - _RIGHT  # the length of the time axis

    def panel(self, panel: Panel, upper: float) -> None:
        """One timeline, from its upper edge down."""
        after = self.write(EDGE, upper - 0.16, panel.name, 10.0, INK, "bold")
        self.write(after + EDGE * bool(panel.name), upper - 0.16, panel.headline, 9.0, SOFT)
        rows = _rows_height(panel)
        lower = upper - _HEAD - rows
        axes = self._axes(lower, rows, panel.makespan)
        stalls = [(start, end - start) for start, end in panel.stalls]  # one collection: there may be thousands
        axes.broken_barh(stalls, (0.0, rows), facecolors=STALL, alpha=0.10, linewidth=0, zorder=0.5)
        top, scale = _GAP, self.inside / self.end
        for number, row in enumerate(panel.rows):
            height = _GROUP if number else _THREAD
            draw_row(axes, row, top, height, panel.makespan, self.palette, self.letters, scale)
            label = self.letters.cut(one_line(row.label), _LEFT - 0.25, FONT)
            x = _LEFT - 0.1 - self.letters.width(label, FONT)
            self.write(x, lower + rows - top - height / 2 - 0.04, label, FONT, SOFT)
            top += height + _GAP
        for number, note in enumerate(panel.notes):
            self.write(_LEFT, lower - _TICKS - (number + 0.7) * _NOTE, note, FONT, INK)

    def _axes(self, lower: float, rows: float, makespan: float) -> Axes:
        axes = self.axes(_LEFT, lower, self.inside, rows)
        axes.set(ylim=(rows, 0.0), yticks=[])
        self.time_axis(axes, self.end, makespan, self.inside)
        return axes
