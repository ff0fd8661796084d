"""The web page: one file that needs nothing else, no network and no library; pictures are inside it."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.moe_page.drawing import COLOURS
from benchmarks.moe_page.quantities import QUANTITIES
from benchmarks.moe_page.results import Results, Settings
from benchmarks.moe_page.tables import headlines_text, names_table, rows_table, talk_table
from benchmarks.moe_page.timelines import timelines

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
    "bound": "no order of the same work on these ranks takes less, by the same costs as the simulated step.",
    "spread": "the fastest and the slowest round; the step is the median. What differs by less says nothing.",
    "over best eager": "the shortest step of eager torch.distributed.pipelining in the same setting and of the same "
    "kind, over this one; of what was only simulated, over the simulated eager one.",
    "exposed": "communication with no computation beside it, the ranks of one pipeline together. Measured: what they "
    "wait for collectives; simulated: for messages between stages, too.",
    "peak memory": "of a rank. Measured: all that a step allocates, with temporaries and new gradients; simulated: "
    "what actions keep for later ones, until those end.",
}
_NOWHERE = "<p>The run does not say where it ran.</p>\n"


def page(results: Results, pictures: Mapping[str, Sequence[Path]]) -> str:
    """The page as text; pictures are those of each configuration, which are there already."""
    sections = [
        ("Headline", headlines_text(results.headlines)),
        *((name, _configuration(results, name, pictures[name])) for name in results.configurations()),
        ("Published beside found", talk_table(results.talk)),
        ("What the words mean", _words()),
        ("Environment", names_table(results.environment) if results.environment else _NOWHERE),
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
    ended = "<p><b>The run was interrupted: rows that it did not reach have no times.</b></p>\n"
    return ended * results.interrupted + (
        f"<p>Made by {command}. {len(rows)} rows, {measured} of them run on this machine and {simulated} simulated; "
        "the step of one is compared with that of another only in the same setting.</p>\n"
    )


def _configuration(results: Results, name: str, pictures: Sequence[Path]) -> str:
    rows = results.configurations()[name]
    first, *others = (_image(path, name) for path in pictures) if pictures else ("",)
    more = f"<details><summary>more pictures</summary>\n{''.join(others)}</details>\n" if others else ""
    lacking = [
        quantity.title.lower()
        for quantity in QUANTITIES
        if all(value is None for row in rows for value in quantity.of(row))
    ]
    note = f'<p class="note">No row says: {"; ".join(lacking)}.</p>\n' if lacking else ""
    return f"{_settings(results.settings.get(name))}{first}{rows_table(rows)}{more}{note}{timelines(rows)}"


def _settings(settings: Settings | None) -> str:
    """What the configuration is, and what it leaves out, behind a heading to press."""
    if settings is None:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in settings.left_out)
    left_out = f"<p>Left out:</p>\n<ul>{items}</ul>\n" if items else ""
    about = "the configuration, and what it leaves out" if items else "the configuration"
    return f"<details><summary>{about}</summary>\n{names_table(settings.values)}{left_out}</details>\n"


def _image(path: Path, name: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    about = escape(f"{path.stem.replace('_', ' ')}: bars of the rows of {name}, which the table has, too")
    return f'<img alt="{about}" src="data:image/png;base64,{data}">\n'


def _words() -> str:
    return f"<dl>{''.join(f'<dt>{word}</dt><dd>{text}</dd>' for word, text in _WORDS.items())}</dl>\n"
