"""The simulated timelines of a configuration: those of one setting on one time axis, and how many there are not."""

from collections.abc import Sequence
from html import escape

from annopipe.simulation.wording import seconds_text
from benchmarks.moe_page.comparing import by_setting, most_telling
from benchmarks.moe_page.drawing import COLOURS, WORDS, Drawing, shown_bars
from benchmarks.moe_page.results import Bar, Row, Setting

__all__ = ["timelines"]

_MOST_TIMELINES = 6  # of a configuration: a page stays within some megabytes
_TOOLS = (
    '<div class="tools"><button type="button" data-zoom="in" title="zoom in">+</button>'
    '<button type="button" data-zoom="out" title="zoom out">&#8722;</button>'
    '<button type="button" data-zoom="fit">fit</button>'
    '<span class="note">Ctrl and the wheel zoom; timelines scroll together; the pointer on a bar says what it is.'
    "</span></div>\n"
)


def timelines(rows: Sequence[Row]) -> str:
    """The most telling of them, in a frame that zooms; what is cut, and what is not drawn, is said."""
    kept = [row for row in rows if row.timeline]
    if not kept:
        return '<p class="note">The run kept no timeline of this configuration.</p>\n'
    chosen = by_setting(most_telling(kept, _MOST_TIMELINES))
    drawn = {setting: [(row, row.timeline or ()) for row in those] for setting, those in chosen.items()}
    counts = {"are not drawn": len(kept) - min(len(kept), _MOST_TIMELINES), "were not kept": len(rows) - len(kept)}
    said = ", ".join(f"those of {count} more rows {what}" for what, count in counts.items() if count)
    note = f'<p class="note">Timelines: {said}.</p>\n' if said else ""
    kinds = [kind for those in drawn.values() for _, bars in those for kind in Drawing(bars, 1.0).kinds()]
    texts = "".join(_of_setting(setting, those) for setting, those in drawn.items())
    return f"<h3>Timelines, simulated</h3>\n{_TOOLS}{_key(kinds)}{texts}{note}"


def _of_setting(setting: Setting, rows: Sequence[tuple[Row, Sequence[Bar]]]) -> str:
    """Those of a setting have one time axis."""
    shown = [(row, bars, *shown_bars(bars)) for row, bars in rows]
    end = max(until for *_, until in shown) or 1.0
    found = [f"<h3>{escape(str(setting))}</h3>\n"]
    for row, bars, drawn, until in shown:
        whole = max(bar.end_s for bar in bars)
        cut = f"; cut: the first {len(drawn)} of {len(bars)} bars, up to {seconds_text(until)}" * (
            len(drawn) < len(bars)
        )
        name = f'<p class="caption"><b>{escape(row.name)}</b> {seconds_text(whole)}{cut}</p>'
        found.append(f"{name}\n{Drawing(drawn, end).svg(row.name)}")
    return "".join(found)


def _key(kinds: Sequence[str]) -> str:
    """A sample of each colour that occurs."""
    keys = [
        f'<span class="key"><svg><rect class="k-{kind}" width="18" height="12"/></svg>{WORDS[kind]}</span>'
        for kind in COLOURS
        if kind in kinds
    ]
    return f'<div class="tools">{"".join(keys)}</div>\n'
