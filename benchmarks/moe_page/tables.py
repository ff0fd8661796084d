"""The tables of the page: all rows of a configuration, the headline and its chain, published numbers, environment."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from operator import mul
from typing import Any

from annopipe.simulation.wording import seconds_text
from benchmarks.moe_page.claims import Headline, TalkLine
from benchmarks.moe_page.comparing import by_setting, over_best_eager
from benchmarks.moe_page.quantities import QUANTITIES, STEP, Quantity
from benchmarks.moe_page.results import Row

__all__ = ["headlines_text", "names_table", "rows_table", "talk_table"]

_NAMED = ("PP", "EP", "DP", "skew", "runtime", "schedule", "policy", "nano-batches", "compiled")
_STEP = ("kind", "rounds", "step", "spread", "simulated", "step/simulated", "bound", "over best eager")
_OTHERS = ("exposed", "exposed, simulated", "peak memory", "peak, simulated", "missing")
_TEXTS = frozenset({"runtime", "schedule", "policy", "compiled", "kind", "missing"})
_Cell = tuple[str, float | str | None]  # what is shown, and what is sorted by


def rows_table(rows: Sequence[Row]) -> str:
    """All rows of a configuration, those of one setting after the other and the fastest first; sorted by any column."""
    lines = [
        dict(zip((*_NAMED, *_STEP, *_OTHERS), (*_named(row), *_step(row, those), *_others(row)), strict=True))
        for those in by_setting(rows).values()
        for row in those
    ]
    # Columns in which no row has anything are left out; the page says what no row has.
    names = [name for name in lines[0] if any(line[name][0] for line in lines)]
    heads = "".join(
        f'<th{_text_class(name)} aria-sort="none"><button type="button">{escape(name)}</button></th>' for name in names
    )
    body = "\n".join(f"<tr>{''.join(_cell(name, *line[name]) for name in names)}</tr>" for line in lines)
    table = f'<table class="sortable">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    return f'<div class="wide">{table}</div>\n'


def _named(row: Row) -> list[_Cell]:
    of = row.setting
    compiled = "yes" if row.compiled else "no"
    return [
        *((f"{number:g}", number) for number in (of.pp, of.ep, of.dp, of.skew)),
        *((text, text) for text in (row.runtime, row.schedule, row.policy or "")),
        (str(row.nano_batches), row.nano_batches),
        (compiled, compiled),
    ]


def _step(row: Row, rows: Sequence[Row]) -> list[_Cell]:
    measured, simulated = STEP.of(row)
    spread, times = STEP.spread(row), row.measured.seconds if row.measured else ()
    ratio = None if measured is None or simulated is None else measured / simulated
    bound, over = row.predicted.bound_s if row.predicted else None, over_best_eager(row, rows)
    kind = row.measured.kind if row.measured else "simulated" if row.predicted else ""
    return [
        (kind, kind),
        (str(len(times) or ""), len(times) or None),
        _amount(STEP, measured),
        ("" if spread is None else " to ".join(map(seconds_text, spread)), spread[1] - spread[0] if spread else None),
        _amount(STEP, simulated),
        ("" if ratio is None else f"{ratio:.3f}", ratio),
        _amount(STEP, bound),
        ("" if over is None else f"{over:.2f}x", over),
    ]


def _others(row: Row) -> list[_Cell]:
    why = row.why_missing or ("nothing says why" if row.measured is None or row.predicted is None else "")
    return [*(_amount(quantity, value) for quantity in QUANTITIES[1:] for value in quantity.of(row)), (why, why)]


def _amount(quantity: Quantity, value: float | None) -> _Cell:
    return "" if value is None else quantity.text(value), value


def _cell(name: str, shown: str, by: float | str | None) -> str:
    return f'<td{_text_class(name)} data-by="{escape("" if by is None else str(by))}">{escape(shown)}</td>'


def _text_class(name: str) -> str:
    return ' class="text"' if name in _TEXTS else ""


def headlines_text(headlines: Sequence[Headline]) -> str:
    """What was asked, what was found, and the chain of runs that leads there."""
    none = "<p>There is no headline: the runs that it compares were not in this one, or not finished.</p>\n"
    return "".join(map(_headline, headlines)) or none


def _headline(headline: Headline) -> str:
    met = headline.found >= headline.asked
    text = (
        f'<p class="headline {"met" if met else "missed"}"><b>{headline.found:.2f}x</b> '
        f"asked: at least {headline.asked:g}x; {'met' if met else 'not met'}</p>\n"
    )
    if headline.about:
        text += f"<p>{escape(headline.about)}</p>\n"
    if headline.least is not None:
        text += f'<p class="note">{headline.least:.2f}x by the rounds that are worst for it.</p>\n'
    if not headline.chain:
        return f"{text}<p>The run does not say where it comes from.</p>\n"
    products = list(accumulate((ratio for _, ratio in headline.chain), mul))
    lines = (
        (escape(name), f"{ratio:.3f}x", f"{product:.3f}x")
        for (name, ratio), product in zip(headline.chain, products, strict=True)
    )
    text += _table(("where it comes from", "times as fast", "so far"), lines)
    if abs(products[-1] / headline.found - 1) > 0.01:
        text += (
            f"<p>These steps multiply to {products[-1]:.2f}x and not to the whole, which was measured by itself.</p>\n"
        )
    return text


def talk_table(talk: Sequence[TalkLine]) -> str:
    """Published numbers beside those found here."""
    if not talk:
        return "<p>This run compared nothing with published numbers.</p>\n"
    lines = (tuple(escape(each) or "&#8211;" for each in (t.name, t.published, t.found, t.how)) for t in talk)
    return _table(("", "published", "here", "how"), lines)


def names_table(named: Mapping[str, Any]) -> str:
    """Names and values; what is nested is written as JSON."""
    lines = (
        (escape(str(name)), escape(value if isinstance(value, str) else json.dumps(value, default=str)))
        for name, value in named.items()
    )
    return _table((), lines, "plain")


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], kind: str = "short") -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f'<table class="{kind}">\n{f"<tr>{head}</tr>" if head else ""}\n{body}\n</table>\n'
