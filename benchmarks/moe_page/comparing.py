"""Which rows may stand beside each other, in which order, and what the best eager one of them is."""

from collections.abc import Iterable, Sequence
from math import inf

from benchmarks.moe_page.results import Row, Setting

__all__ = ["best_eager", "best_eager_simulated", "by_setting", "most_telling", "over_best_eager"]


def by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    """The rows of each setting, the fastest first; rows without any time come last."""
    found: dict[Setting, list[Row]] = {}
    for row in rows:
        found.setdefault(row.setting, []).append(row)
    return {setting: sorted(those, key=_step) for setting, those in found.items()}


def best_eager(rows: Sequence[Row]) -> dict[str, float]:
    """Of rows of one setting: per kind of measurement, the shortest step of eager torch.distributed.pipelining."""
    found: dict[str, float] = {}
    for row in rows:
        if row.runtime == "eager" and row.measured:
            kind = row.measured.kind
            found[kind] = min(found.get(kind, inf), row.measured.median_s)
    return found


def best_eager_simulated(rows: Sequence[Row]) -> float | None:
    """The same, of what is simulated."""
    return min((row.predicted.seconds for row in rows if row.runtime == "eager" and row.predicted), default=None)


def over_best_eager(row: Row, rows: Sequence[Row]) -> float | None:
    """How many times as fast a row is as the best eager one: by measurement, or else by simulation; None without one.

    A measured step is never compared with a simulated one.
    """
    if row.measured:
        best = best_eager(rows).get(row.measured.kind)
        return None if best is None else best / row.measured.median_s
    best = best_eager_simulated(rows)
    return best / row.predicted.seconds if best is not None and row.predicted else None


def most_telling(rows: Sequence[Row], most: int) -> list[Row]:
    """At most so many rows, in their order: the fastest of each runtime, and then the fastest of all."""
    ordered = sorted(rows, key=_step)
    first = {row.runtime: row for row in reversed(ordered)}.values()
    chosen = [*first, *(row for row in ordered if not any(row is each for each in first))][:most]
    return [row for row in rows if any(row is each for each in chosen)]


def _step(row: Row) -> float:
    return inf if row.step_s is None else row.step_s
