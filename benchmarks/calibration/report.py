"""Predicted against paced: a row for each schedule, and whether the prediction ranks them as they are."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

__all__ = ["Ranking", "Row", "ranking", "table"]

_HEADERS = ("schedule", "predicted ms", "paced ms", "spread", "ratio", "by plans ms", "ratio")


@dataclass(frozen=True)
class Row:
    """One schedule: seconds of a step as predicted, and in every round.

    predicted_s: by ``ap.tune``, from the table of layers.
    planned_s: from the graphs that run, each combination of them in the order of its plan.

    >>> row = Row("1f1b", True, 2.0, 1.9, (2.2, 2.1, 2.0))
    >>> row.paced_s, round(row.ratio, 3)
    (2.1, 1.05)
    """

    schedule: str
    library: bool
    predicted_s: float
    planned_s: float
    rounds_s: tuple[float, ...]

    @property
    def paced_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds_s)

    @property
    def ratio(self) -> float:
        """Paced over predicted."""
        return self.paced_s / self.predicted_s

    @property
    def spread(self) -> float:
        """From the fastest to the slowest round, as a share of the median."""
        return (max(self.rounds_s) - min(self.rounds_s)) / self.paced_s


@dataclass(frozen=True)
class Ranking:
    """How many pairs of schedules differ by more than the largest spread of all, and those predicted otherwise."""

    spread: float
    pairs: int
    wrong: tuple[tuple[str, str], ...]


def ranking(rows: Sequence[Row]) -> Ranking:
    """Compare every two schedules; of a pair that is predicted otherwise, the faster one comes first.

    >>> ranking([Row("a", True, 1.0, 1, (1.1,)), Row("b", True, 1.5, 1, (1.3,)), Row("c", True, 1.4, 1, (1.6,))])
    Ranking(spread=0.0, pairs=3, wrong=(('b', 'c'),))
    """
    spread = max(row.spread for row in rows)
    pairs = [
        (one, other)
        for one, other in itertools.combinations(sorted(rows, key=lambda row: row.paced_s), 2)
        if other.paced_s - one.paced_s > spread * one.paced_s
    ]
    wrong = [(one.schedule, other.schedule) for one, other in pairs if one.predicted_s >= other.predicted_s]
    return Ranking(spread, len(pairs), tuple(wrong))


def table(rows: Sequence[Row]) -> str:
    """The rows, the fastest first, and two lines about all of them."""
    cells = [
        (
            f"{row.schedule}{' (library)' if row.library else ''}",
            f"{row.predicted_s * 1e3:.0f}",
            f"{row.paced_s * 1e3:.0f}",
            f"{min(row.rounds_s) * 1e3:.0f}-{max(row.rounds_s) * 1e3:.0f}",
            f"{row.ratio:.3f}",
            f"{row.planned_s * 1e3:.0f}",
            f"{row.paced_s / row.planned_s:.3f}",
        )
        for row in sorted(rows, key=lambda row: row.paced_s)
    ]
    found = ranking(rows)
    worst = max(abs(row.ratio - 1.0) for row in rows)
    right = found.pairs - len(found.wrong)
    said = [f"{found.pairs} pairs differ by more than {found.spread:.1%}, the largest spread; predicted so: {right}"]
    said += [f"not {one} before {other}" for one, other in found.wrong]
    return "\n".join(
        [
            tabulate(cells, _HEADERS, disable_numparse=True),
            f"furthest from the prediction: {worst:.1%}",
            "; ".join(said),
        ]
    )
