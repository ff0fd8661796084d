"""The web page around drawings of timelines: one file that needs nothing else, no network and no library.

`shell.html` beside this file is the page without its contents, `shell.js` what the scripts of all pages share: zoom and
pan, the tooltip, the time axis, the legend. What draws is a script of the caller's.
"""

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

__all__ = ["drawing", "heading", "page"]

_PAGE, _SHARED = (Path(__file__).with_name(name) for name in ("shell.html", "shell.js"))


def page(title: str, drawings: str, tables: str, data: Mapping[str, object], script: Path) -> str:
    """The whole page; `drawings` and `tables` are HTML, `data` is what `script` finds as `shell.data`.

    `data["timelines"]` is a list with a "makespan" for each of the drawings.
    """
    parts = {
        "TITLE": escape(title),
        "DRAWINGS": drawings,
        "TABLES": tables,
        # "<" inside the data could end the script element.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "SHELL": _SHARED.read_text(encoding="utf-8"),
        "SCRIPT": script.read_text(encoding="utf-8"),
    }
    # One pass: a title that contains such a name stays as it is.
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], _PAGE.read_text(encoding="utf-8"))


def drawing(number: int, name: str, chips: Iterable[tuple[str, str]]) -> str:
    """Heading, key numbers, and the canvas that the script draws the `number`-th timeline on."""
    numbers = "".join(f"<span>{escape(what)} <b>{escape(value)}</b></span>" for what, value in chips)
    label = escape(f"Timeline {name}".strip())
    return f"""<div class="head">{heading(name)}<div class="chips">{numbers}</div></div>
<canvas id="timeline-{number}" tabindex="0" role="img" aria-label="{label}"></canvas>
"""


def heading(name: str) -> str:
    """The name of a timeline as a heading; nothing for ""."""
    return f"<h2>{escape(name)}</h2>" if name else ""
