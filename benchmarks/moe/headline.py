"""The headline: our DualPipeV against the best eager schedule of the same run, and where its gain comes from.

The chain goes from the eager runtime to ours in steps that differ in one thing each, so that the ratios of its steps
multiply to the whole.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.moe.variant import SEQUENTIAL, Variant

__all__ = ["ASKED", "headlines", "median_s", "of_variant"]

ASKED = 1.5
_SCHEDULE, _POLICY = "dualpipev", "auto"
Row = Mapping[str, Any]


def headlines(rows: Sequence[Row], configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One for each configuration whose computation is paced, as long as communication, and that has all rows of it."""
    found = []
    for name, about in configs.items():
        if about["kind"] == "paced" and about.get("model", {}).get("ratio", 1.0) == 1.0:
            own = [row for row in rows if row["config"] == name]
            if (headline := _headline(name, own)) is not None:
                found.append(headline)
    return found


def _headline(name: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    measured = {Variant.from_plain(row): row for row in rows if row["measured"] is not None}
    eager = [own for own in measured if own.runtime == "eager" and own.skew == 1.0]
    if not eager:
        return None
    best = min(eager, key=lambda own: median_s(measured[own]))
    ours = Variant("annopipe", _SCHEDULE)
    parts = max(
        (own.nano_batches for own in measured if own.schedule == _SCHEDULE and own.policy == _POLICY), default=1
    )
    links = [
        ("", best),
        (f"runtime: {best.schedule} on annopipe", Variant("annopipe", best.schedule)),
        (f"schedule: {_SCHEDULE}, pairs apart", ours),
        ("pairs as one graph, not reordered", ours.without(policy=SEQUENTIAL)),
        (f"pairs reordered by {_POLICY}", ours.without(policy=_POLICY)),
        (f"nano-batches of {parts}", ours.without(policy=_POLICY, nano_batches=parts)),
    ]
    if parts == 1:
        links.pop()
    if any(own not in measured for _, own in links):
        return None
    times = [median_s(measured[own]) for _, own in links]
    chain = [[text, before / after] for (text, _), before, after in zip(links[1:], times, times[1:], strict=False)]
    last = measured[links[-1][1]]["measured"]["seconds"]
    return {
        "config": name,
        "asked": ASKED,
        "found": math.prod(ratio for _, ratio in chain),
        "least": min(measured[best]["measured"]["seconds"]) / max(last),
        "of": str(best),
        "by": str(links[-1][1]),
        "chain": chain,
    }


def median_s(row: Row) -> float:
    """Of the rounds of a row that was measured."""
    return statistics.median(row["measured"]["seconds"])


def of_variant(rows: Sequence[Row], config: str, variant: Variant) -> Row | None:
    """The row of a configuration, if there is one."""
    return next((row for row in rows if row["config"] == config and Variant.from_plain(row) == variant), None)
