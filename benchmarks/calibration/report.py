"""Predicted against paced: a row for each schedule, and whether the prediction ranks them as they are."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

__all__ = ["Ranking", "Row", "ranking", "table"]

_HEADERS = ("schedule", "tuner ms", "paced/tuner", "predicted ms", "paced/predicted", "paced ms", "spread")
_ALIKE = 1e-3  # predictions that differ by less say that two schedules are alike


@dataclass(frozen=True)
class Row:
    """One schedule: seconds of a step in every round, and as predicted.

    predicted_s: from the graphs that run, each combination of them in the order of its plan.
    tuner_s: from the table of layers alone, which is what the search goes by.

    >>> row = Row("1f1b", True, 1.9, 2.0, (2.2, 2.1, 2.0))
    >>> row.paced_s, round(row.ratio, 3)
    (2.1, 1.05)
    """

    schedule: str
    library: bool
    tuner_s: float
    predicted_s: float
    rounds_s: tuple[float, ...]

    @property
    def paced_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds_s)

    @property
    def ratio(self) -> float:
        """Paced over predicted."""
        return self.paced_s / self.predicted_s

    def differs(self, other: "Row") -> bool:
        """Whether every round of one is faster than every round of the other."""
        return max(self.rounds_s) < min(other.rounds_s) or max(other.rounds_s) < min(self.rounds_s)


@dataclass(frozen=True)
class Ranking:
    """Pairs of schedules that differ by more than their spread: how many, those predicted the other way, and alike."""

    pairs: int
    wrong: tuple[tuple[str, str], ...]
    alike: tuple[tuple[str, str], ...]


def ranking(rows: Sequence[Row]) -> Ranking:
    """Compare every two schedules.

    >>> ranking([Row("a", True, 1, 1.0, (1.1, 1.2)), Row("b", True, 1, 1.5, (1.3,)), Row("c", True, 1, 1.4, (1.6,))])
    Ranking(pairs=3, wrong=(('b', 'c'),), alike=())
    """
    pairs, wrong, alike = 0, [], []
    for one, other in itertools.combinations(sorted(rows, key=lambda row: row.paced_s), 2):
        if not one.differs(other):
            continue
        pairs += 1
        if abs(one.predicted_s - other.predicted_s) <= _ALIKE * one.predicted_s:
            alike.append((one.schedule, other.schedule))
        elif one.predicted_s > other.predicted_s:
            wrong.append((one.schedule, other.schedule))
    return Ranking(pairs, tuple(wrong), tuple(alike))


def table(rows: Sequence[Row]) -> str:
    """The rows, the fastest first, and two lines about all of them."""
    cells = [
        (
            f"{row.schedule}{' (library)' if row.library else ''}",
            f"{row.tuner_s * 1e3:.0f}",
            f"{row.paced_s / row.tuner_s:.3f}",
            f"{row.predicted_s * 1e3:.0f}",
            f"{row.ratio:.3f}",
            f"{row.paced_s * 1e3:.0f}",
            f"{min(row.rounds_s) * 1e3:.0f}-{max(row.rounds_s) * 1e3:.0f}",
        )
        for row in sorted(rows, key=lambda row: row.paced_s)
    ]
    found = ranking(rows)
    worst = max(abs(row.ratio - 1.0) for row in rows)
    right = found.pairs - len(found.wrong) - len(found.alike)
    said = [f"{found.pairs} pairs differ by more than their spread; the prediction ranks {right} of them so"]
    said += [f"not {one} before {other}" for one, other in found.wrong]
    said += [f"{one} and {other} are predicted alike" for one, other in found.alike]
    return "\n".join(
        [
            tabulate(cells, _HEADERS, disable_numparse=True),
            f"furthest from the prediction: {worst:.1%}",
            "; ".join(said),
        ]
    )
