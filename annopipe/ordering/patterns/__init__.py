"""The pattern language: an order of two or more lanes written as text, ``B.combine | F.attention ; B.experts | ...``.

Three layers that do not mix: text to a ``Pattern`` (``text``), its pieces to the nodes of a problem (``matching``),
both to an order (``applying``).
"""

from annopipe.ordering.patterns.applying import apply, with_lanes
from annopipe.ordering.patterns.text import Pattern, PatternError, Piece, parse

__all__ = ["Pattern", "PatternError", "Piece", "apply", "parse", "with_lanes"]
