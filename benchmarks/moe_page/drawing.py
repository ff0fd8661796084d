"""Simulated steps as inline SVG: two lanes for each rank; what a rectangle is, the pointer on it says.

Places are in per cent of the width, so that a wider drawing shows more and stretches no letters.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import floor, log10

from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.wording import seconds_text
from benchmarks.moe_page.results import Bar

__all__ = ["COLOURS", "MOST_BARS", "WORDS", "Drawing", "shown_bars"]

MOST_BARS = 2000  # rectangles of a timeline that is cut
_CUT_ABOVE = 2400  # a little more is not worth cutting
_HIGH, _THIN, _BETWEEN, _RANK_GAP = 16, 9, 2, 7  # pixels: the lane of computation, that of communication
_AXIS, _TICKS, _LAST_TICK = 22, 10, 97.0  # pixels, at most so many ticks, per cent
_LANES = {"compute": (0, _HIGH), "communication": (_HIGH + _BETWEEN, _THIN)}
_PITCH = _HIGH + _BETWEEN + _THIN + _RANK_GAP
_KINDS = ("F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD")
_OF_KIND = re.compile(rf"\d+({'|'.join(_KINDS)})(?:\d+)?(?:/\d+)?")
WORDS = {
    **{kind: Looks(()).of(kind).word for kind in _KINDS},
    "compute": "computation",
    "communication": "communication",
}
# The colours of actions as in every picture of a schedule; what is no action has that of its lane.
COLOURS = {**{kind: Looks(()).of(kind).colour for kind in _KINDS}, "compute": "#a9b4c2", "communication": "#cbb2e3"}


def shown_bars(bars: Sequence[Bar]) -> tuple[list[Bar], float]:
    """What is drawn of a step, by start, and up to when: all of it, or the beginning where it has too much.

    >>> bars = [Bar(rank, "compute", float(t), t + 1.0, "F") for t in range(1500) for rank in range(2)]
    >>> drawn, until = shown_bars(bars)
    >>> len(drawn), until
    (2000, 1000.0)
    """
    ordered = sorted(bars, key=lambda bar: (bar.start_s, bar.rank, bar.lane))
    end = max((bar.end_s for bar in ordered), default=0.0)
    if sum(len(_parts(bar)) for bar in ordered) <= _CUT_ABOVE:
        return ordered, end
    drawn = 0
    for number, bar in enumerate(ordered):
        drawn += len(_parts(bar))
        if drawn > MOST_BARS:
            begun = ordered[:number]
            return begun, bar.start_s or max(each.end_s for each in begun)
    return ordered, end


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below the least.

    >>> _round_step(0.03), _round_step(0.7)
    (0.05, 1.0)
    """
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _lane_of(bar: Bar) -> tuple[int, str]:
    return bar.rank, bar.lane


def _parts(bar: Bar) -> list[str]:
    """The colours of a bar, from its upper edge down: those of the actions in its label, or of its lane."""
    kinds = [match[1] for match in _OF_KIND.finditer(bar.label)]
    return kinds if bar.lane == "compute" and kinds else [bar.lane]


@dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing of a step on a time axis that ends at `end_s`, which several may share."""

    bars: Sequence[Bar]
    end_s: float

    @property
    def ranks(self) -> list[int]:
        """Those that do something, in order."""
        return sorted({bar.rank for bar in self.bars})

    def kinds(self) -> list[str]:
        """The names of the colours that occur, in the order of the table of colours."""
        found = {part for bar in self.bars for part in _parts(bar)}
        return [name for name in COLOURS if name in found]

    def svg(self, name: str) -> str:
        """The names of the ranks, and beside them what scrolls."""
        height = _PITCH * len(self.ranks)
        ranks = "".join(f'<div style="height:{_PITCH}px">rank {rank}</div>' for rank in self.ranks)
        return (
            f'<div class="timeline"><div class="ranks">{ranks}</div><div class="scroll" tabindex="0">'
            f'<svg role="img" aria-label="{escape(name)}" width="100%" height="{height + _AXIS}">'
            f"{self._axis(height)}{self._rows()}</svg></div></div>\n"
        )

    def _axis(self, height: int) -> str:
        found = []
        step = _round_step(self.end_s / _TICKS)
        for tick in range(int(self.end_s / step * (1 + 1e-9)) + 1):
            x = 100 * tick * step / self.end_s
            anchor = "start" if not tick else "end" if x > _LAST_TICK else "middle"
            found.append(
                f'<line x1="{x:.5g}%" x2="{x:.5g}%" y1="0" y2="{height}"/>'
                f'<text class="tick" x="{x:.5g}%" y="{height + 15}" text-anchor="{anchor}">'
                f"{seconds_text(tick * step)}</text>"
            )
        return "".join(found)

    def _rows(self) -> str:
        places = {rank: place for place, rank in enumerate(self.ranks)}
        found = []
        for (rank, lane), those in groupby(sorted(self.bars, key=_lane_of), key=_lane_of):
            top = places[rank] * _PITCH + _RANK_GAP / 2 + _LANES[lane][0]
            found.append(f'<g transform="translate(0 {top:g})">{"".join(map(self._bar, those))}</g>')
        return "\n".join(found)

    def _bar(self, bar: Bar) -> str:
        scale = 100 / self.end_s
        x, width = bar.start_s * scale, (min(bar.end_s, self.end_s) - bar.start_s) * scale
        parts = _parts(bar)
        each = _LANES[bar.lane][1] / len(parts)
        boxes = "".join(
            f'<rect class="k-{part}" x="{x:.5g}%" y="{number * each:.4g}" width="{width:.5g}%" height="{each:.4g}"/>'
            for number, part in enumerate(parts)
        )
        took = f"{seconds_text(bar.end_s - bar.start_s)} from {seconds_text(bar.start_s)}"
        return f"<g><title>{escape(bar.label)}\n{took}</title>{boxes}</g>"
