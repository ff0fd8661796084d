"""Schedules as one web page that needs nothing else: no network, no library.

`viewer.js` beside this file draws them on the page of `annopipe.simulation.shell`. The schedules of one page share the
time scale, the zoom and the colours.
"""

from collections.abc import Mapping
from html import escape
from os import PathLike
from pathlib import Path

from annopipe.simulation import shell
from annopipe.simulation.files import write_text
from annopipe.simulation.ranks.comparison import comparison_rows
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.summary import key_numbers
from annopipe.simulation.ranks.viewer_data import viewer_data

__all__ = ["page", "write"]

_SCRIPT = Path(__file__).with_name("viewer.js")


def write(path: str | PathLike[str], timelines: Mapping[str, Pictured], title: str = "annopipe schedule") -> None:
    """Write a page that shows schedules below each other on one time scale, each with the memory of its ranks.

    Raises AnnopipeError when the file cannot be written; folders that are missing are made.

    >>> import pathlib, tempfile
    >>> import annopipe as ap
    >>> schedule = ap.Schedule.of(ap.placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> timeline = ap.simulate(schedule, ap.costs.table(F=1.0, B=2.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "schedule.html")
    ...     write(path, {"naive": timeline}, "one microbatch")
    ...     path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    True
    """
    write_text(path, page(timelines, title))


def page(timelines: Mapping[str, Pictured], title: str) -> str:
    """The page as text."""
    drawings = "".join(
        shell.drawing(number, name, key_numbers(timeline)) for number, (name, timeline) in enumerate(timelines.items())
    )
    return shell.page(title, drawings, _table(timelines) if timelines else "", viewer_data(timelines), _SCRIPT)


def _table(timelines: Mapping[str, Pictured]) -> str:
    head, *body = comparison_rows(timelines)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
    rows = "\n".join(f"<tr>{line}</tr>" for line in lines)
    names = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return (
        '<section>\n<div class="tables">\n<div><h3>side by side</h3>'
        f"<table>\n<tr>{names}</tr>\n{rows}\n</table></div>\n</div>\n</section>\n"
    )
