"""How much room a text takes on a figure."""

from functools import cache

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import FontProperties

from annopipe.simulation.wording import clip, shorten

__all__ = ["Lettering"]


class Lettering:
    """Measures texts as the figure of a canvas would show them; lengths in inches, sizes of letters in points.

    >>> from matplotlib.figure import Figure
    >>> letters = Lettering(FigureCanvasAgg(Figure(dpi=100)))
    >>> letters.width("attention", 16) > letters.width("attention", 8) > letters.width("atte", 8) > 0
    True
    >>> letters.cut("block0/moe/dispatch", letters.width("..oe/dispatch", 8), 8)
    '..oe/dispatch'
    """

    def __init__(self, canvas: FigureCanvasAgg) -> None:
        renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
        dpi = canvas.figure.dpi

        @cache
        def width(text: str, size: float, weight: str) -> float:
            font = FontProperties(size=size, weight=weight)
            return float(renderer.get_text_width_height_descent(text, font, ismath=False)[0]) / dpi

        self._width = width

    def width(self, text: str, size: float, weight: str = "normal") -> float:
        """The length of a text on one line."""
        return self._width(text, size, weight) if text else 0.0

    def clip(self, text: str, room: float, size: float) -> str:
        """The sentence, or as much of its beginning as there is room for."""
        kept = len(text)
        while kept > 3 and self.width(clip(text, kept), size) > room:
            kept -= 1
        return clip(text, kept)

    def cut(self, text: str, room: float, size: float) -> str:
        """The text, or as much of its end as there is room for."""
        kept = len(text)
        while kept > 3 and self.width(shorten(text, kept), size) > room:
            kept -= 1
        return shorten(text, kept)
