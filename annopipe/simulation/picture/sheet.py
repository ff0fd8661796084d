"""A figure on which places are given in inches from its lower left corner, and what all pictures have in common.

The figure has a canvas of its own and is saved in matplotlib's default style whatever the user's is; settings are as
before afterwards. The same figure gives the same bytes.
"""

from collections.abc import Callable, Mapping
from os import PathLike

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from annopipe.simulation.files import place_for
from annopipe.simulation.picture.lettering import Lettering
from annopipe.simulation.wording import one_line, seconds_text

__all__ = ["DPI", "EDGE", "FONT", "INK", "SOFT", "Sheet", "save"]

DPI = 130
EDGE = 0.15  # inches between the figure's edge and what is drawn
FONT = 8.5
INK, SOFT, _GRID = "#1c2430", "#5d6878", "#e1e5ea"


def save(path: str | PathLike[str], draw: Callable[[], Figure]) -> None:
    """Call `draw` and write its figure as PNG; folders that are missing are made.

    Raises AnnopipeError when the file cannot be written.
    """
    with style.context(["default", {"hatch.linewidth": 0.6}]):
        figure = draw()
        with place_for(path) as place:
            figure.savefig(place, format="png", dpi=DPI, metadata={"Software": None})


class Sheet:
    """A white figure of `width` by `height` inches.

    >>> sheet = Sheet(4.0, 2.0)
    >>> 0.2 < sheet.write(0.2, 1.8, "title", 12.0, INK) < 4.0
    True
    """

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        self.width, self.height = width, height
        self.letters = Lettering(FigureCanvasAgg(self.figure))

    def write(self, x: float, y: float, text: str, size: float, colour: str, weight: str = "normal") -> float:
        """Write a line; returns where it ends."""
        text = self.letters.clip(one_line(text), self.width - x - EDGE, size)
        self.figure.text(
            x / self.width, y / self.height, text, size=size, color=colour, weight=weight, parse_math=False
        )  # fmt: skip
        return x + self.letters.width(text, size, weight)

    def legend(self, y: float, entries: Mapping[str, Artist]) -> None:
        """One line of samples with their names."""
        legend = self.figure.legend(
            list(entries.values()),
            list(entries),
            loc="center left",
            bbox_to_anchor=(EDGE / self.width, y / self.height),
            ncols=max(1, len(entries)),
            frameon=False,
            fontsize=FONT,
            borderpad=0.0,
            handlelength=1.8,
            columnspacing=1.6,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)

    def axes(self, left: float, lower: float, width: float, height: float) -> Axes:
        """Axes without a frame, for rows that have their own ground."""
        box = (left / self.width, lower / self.height, width / self.width, height / self.height)
        axes = self.figure.add_axes(box)
        axes.spines[:].set_visible(False)
        axes.set_axisbelow(True)
        return axes

    def time_axis(self, axes: Axes, end: float, makespan: float, length: float) -> None:
        """A horizontal axis of seconds up to `end`, `length` inches long, with a line at the makespan."""
        axes.set(xlim=(0.0, end))
        axes.xaxis.set_major_locator(MaxNLocator(max(4, int(length / 1.1)), steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(round(seconds, 15))))
        axes.tick_params(axis="x", labelsize=FONT - 0.5, colors=SOFT, length=3)
        axes.grid(visible=True, axis="x", color=_GRID, linewidth=0.7)
        axes.axvline(makespan, color=SOFT, linewidth=1.2)
