"""The web page: one file that needs nothing else, no network and no library; pictures are inside it."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from annopipe.simulation.wording import seconds_text
from benchmarks.moe_page.comparing import by_setting
from benchmarks.moe_page.drawing import COLOURS, WORDS, Drawing, shown_bars
from benchmarks.moe_page.quantities import QUANTITIES
from benchmarks.moe_page.results import Results, Row, Setting
from benchmarks.moe_page.tables import environment_table, headline_text, rows_table, talk_table

__all__ = ["page"]

_PAGE, _SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))
_TITLE = "annopipe bench moe"
_WORDS = {
    "measured": "the program ran, and a clock said how long; no more ranks than cores.",
    "paced": "the real order of the graphs and the real messages over a network with a real rate limit, and every "
    "stretch of computation replaced by waiting for its known time, so that many ranks fit on few cores.",
    "emulated": "as paced, where no network can be limited: messages wait, too.",
    "simulated": "no program ran: graphs, schedules and costs say when everything would. Timelines are simulated.",
    "published": "others measured it, elsewhere.",
    "bound": "no step on these ranks can be shorter.",
    "spread": "the fastest and the slowest round; the step is the median. What differs by less says nothing.",
    "over best eager": "the shortest step of eager torch.distributed.pipelining in the same setting and of the same "
    "kind, over this one; of what was only simulated, over the simulated eager one.",
    "exposed": "communication with no computation beside it, all ranks together.",
}
_TOOLS = (
    '<div class="tools"><button type="button" data-zoom="in" title="zoom in">+</button>'
    '<button type="button" data-zoom="out" title="zoom out">&#8722;</button>'
    '<button type="button" data-zoom="fit">fit</button>'
    '<span class="note">Ctrl and the wheel zoom; timelines scroll together; the pointer on a bar says what it is.'
    "</span></div>\n"
)


def page(results: Results, pictures: Mapping[str, Sequence[Path]]) -> str:
    """The page as text; pictures are those of each configuration, which are there already."""
    configurations = results.configurations()
    sections = [
        ("Headline", headline_text(results.headline)),
        *((name, _configuration(name, rows, pictures[name])) for name, rows in configurations.items()),
        ("Published beside found", talk_table(results.talk)),
        ("What the words mean", _words()),
        ("Environment", environment_table(results.environment)),
    ]
    parts = {
        "TITLE": _TITLE,
        "ABOUT": _about(results),
        "LINKS": "".join(f'<a href="#s{number}">{escape(name)}</a>' for number, (name, _) in enumerate(sections)),
        "SECTIONS": "".join(_section(number, name, text) for number, (name, text) in enumerate(sections)),
        "COLOURS": "\n".join(f".k-{name} {{ fill: {colour}; }}" for name, colour in COLOURS.items()),
        "SCRIPT": _SCRIPT.read_text(encoding="utf-8"),
    }
    # One pass: a text of the results that contains such a name stays as it is.
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], _PAGE.read_text(encoding="utf-8"))


def _section(number: int, name: str, text: str) -> str:
    kind = ' class="zooms"' if 'class="timeline"' in text else ""
    return f'<section id="s{number}"{kind}>\n<h2>{escape(name)}</h2>\n{text}</section>\n'


def _about(results: Results) -> str:
    rows = results.rows
    measured, simulated = sum(row.measured is not None for row in rows), sum(row.predicted is not None for row in rows)
    command = f"<code>{escape(results.command)}</code>" if results.command else "a command that the results do not name"
    return (
        f"<p>Made by {command}. {len(rows)} rows, {measured} of them run on this machine and {simulated} simulated; "
        "the step of one is compared with that of another only in the same setting.</p>\n"
    )


def _configuration(name: str, rows: Sequence[Row], pictures: Sequence[Path]) -> str:
    first, *others = (_image(path, name) for path in pictures) if pictures else ("",)
    more = f"<details><summary>more pictures</summary>\n{''.join(others)}</details>\n" if others else ""
    lacking = [
        quantity.title.lower()
        for quantity in QUANTITIES
        if all(value is None for row in rows for value in quantity.of(row))
    ]
    note = f'<p class="note">No row says: {"; ".join(lacking)}.</p>\n' if lacking else ""
    return f"{first}{rows_table(rows)}{more}{note}{_timelines(rows)}"


def _image(path: Path, name: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    about = escape(f"{path.stem.replace('_', ' ')}: bars of the rows of {name}, which the table has, too")
    return f'<img alt="{about}" src="data:image/png;base64,{data}">\n'


def _timelines(rows: Sequence[Row]) -> str:
    drawn = {
        setting: [(row, row.timeline) for row in those if row.timeline] for setting, those in by_setting(rows).items()
    }
    if not any(drawn.values()):
        return '<p class="note">The run kept no timeline of this configuration.</p>\n'
    lacking = sum(not row.timeline for row in rows)
    note = f'<p class="note">{lacking} more rows have no timeline.</p>\n' if lacking else ""
    kinds = [kind for those in drawn.values() for _, bars in those for kind in Drawing(bars, 1.0).kinds()]
    texts = "".join(_timelines_of(setting, those) for setting, those in drawn.items() if those)
    return f"<h3>Timelines, simulated</h3>\n{_TOOLS}{_key(kinds)}{texts}{note}"


def _timelines_of(setting: Setting, rows: Sequence[tuple[Row, Sequence]]) -> str:
    """Those of a setting have one time axis."""
    shown = [(row, bars, *shown_bars(bars)) for row, bars in rows]
    end = max(until for *_, until in shown) or 1.0
    found = [f"<h3>{escape(str(setting))}</h3>\n"]
    for row, bars, drawn, until in shown:
        whole = max(bar.end_s for bar in bars)
        cut = f"; cut: the first {len(drawn)} of {len(bars)} bars, up to {seconds_text(until)}" * (
            len(drawn) < len(bars)
        )
        found.append(
            f"<p><b>{escape(row.name)}</b> {seconds_text(whole)}{cut}</p>\n{Drawing(drawn, end).svg(row.name)}"
        )
    return "".join(found)


def _key(kinds: Sequence[str]) -> str:
    """A sample of each colour that occurs."""
    keys = [
        f'<span class="key"><svg><rect class="k-{kind}" width="18" height="12"/></svg>{WORDS[kind]}</span>'
        for kind in COLOURS
        if kind in kinds
    ]
    return f'<div class="tools">{"".join(keys)}</div>\n'


def _words() -> str:
    return f"<dl>{''.join(f'<dt>{word}</dt><dd>{text}</dd>' for word, text in _WORDS.items())}</dl>\n"
