"""Several timelines side by side: which communication each of them hides."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from annopipe.errors import GraphError
from annopipe.simulation.tables import table
from annopipe.simulation.wording import seconds_text, shorten

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["compare"]

_LONGEST_NAME, _LONGEST_LANE, _LONGEST_REGION = 24, 12, 40
_NO_LIMIT = 10_000


def compare(timelines: Mapping[str, "ProgramTimeline"]) -> str:
    """One table of communication by lane and region, hidden and exposed on each timeline, and the makespans.

    For one plan under balanced and skewed routing, or one graph under several policies. A region that a timeline does
    not have is "-" there. The last row holds each makespan and its share of the first.

    Raises GraphError when there is nothing to compare.

    >>> from annopipe.simulation import Task, run
    >>> exchange, wait = Task("x", "launch", 3e-3, "moe/dispatch", "F"), Task("wait", "wait", launch=0)
    >>> product = Task("mm", "compute", 2e-3)
    >>> print(compare({"sequential": run([exchange, wait, product]), "list": run([exchange, product, wait])}))
                             sequential             list
    lane  region        hidden  exposed  hidden  exposed
    F     moe/dispatch     0 s     3 ms    2 ms     1 ms
          together         0 s     3 ms    2 ms     1 ms
          hidden share      0%              67%
          makespan        5 ms     100%    3 ms      60%
    """
    if not timelines:
        raise GraphError("no timelines to compare; give a mapping from names to timelines, such as one per policy")
    shown = list(timelines.values())
    first = shown[0].makespan
    names = [shorten(name, _LONGEST_NAME) for name in timelines]
    # A name stands above its two columns, and makes the second wider if they are too narrow for it.
    head = ["lane", "region", *(cell for name in names for cell in ("hidden", "exposed".rjust(len(name) - 8)))]
    body = [
        (shorten(lane, _LONGEST_LANE), shorten(region, _LONGEST_REGION), *_cells(shown, lane, region))
        for lane, region in dict.fromkeys((row.lane, row.region) for t in shown for row in t.regions)
    ]
    together = [text for t in shown for text in (seconds_text(t.hidden_comm), seconds_text(t.exposed_comm))]
    shares = [text for t in shown for text in (f"{t.hidden_share:.0%}", "")]
    makespans = [x for t in shown for x in (seconds_text(t.makespan), f"{t.makespan / first:.0%}" if first else "")]
    foot = [("", "together", *together), ("", "hidden share", *shares), ("", "makespan", *makespans)]
    lines = table([head, *body, *foot], _NO_LIMIT)
    above, at = "", 0
    for name, column in zip(names, re.finditer("exposed", lines[0]), strict=True):
        above += f"{name:>{column.end() - at}}"
        at = column.end()
    return "\n".join([above, *lines])


def _cells(timelines: list["ProgramTimeline"], lane: str, region: str) -> list[str]:
    found = []
    for timeline in timelines:
        row = next((row for row in timeline.regions if (row.lane, row.region) == (lane, region)), None)
        found += [seconds_text(row.hidden), seconds_text(row.exposed)] if row else ["-", "-"]
    return found
