"""Two runs of a benchmark beside each other: what is faster, what is slower, and what is within the noise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from annopipe.errors import AnnopipeError
from benchmarks.reporting.runs import Case, Measurement, Run

__all__ = ["Change", "compared", "ranking"]


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a case in two runs; None in the run that has not got it."""

    case: str
    name: str
    before: Measurement | None
    after: Measurement | None

    @property
    def ratio(self) -> float | None:
        """The time after over the time before; None without both."""
        return None if self.before is None or self.after is None else self.after.measured_s / self.before.measured_s

    @property
    def verdict(self) -> str:
        """What there is to say: faster, slower, noise, ? with too few repetitions, new, gone."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        differs = self.after.differs_from(self.before)
        if differs is None:
            return "?"
        if not differs:
            return "noise"
        return "faster" if self.after.measured_s < self.before.measured_s else "slower"


def compared(before: Run, after: Run) -> list[Change]:
    """Every row of the cases that both runs have.

    Raises AnnopipeError if they have no case in common, with the settings in which the first ones differ.
    """
    found: list[Change] = []
    for title, case in zip(after.titles(), after.cases, strict=True):
        old = next((each for each in before.cases if each.compared_settings() == case.compared_settings()), None)
        if old is not None:
            names = dict.fromkeys([*old.rows, *case.rows])
            found += [Change(title, name, old.rows.get(name), case.rows.get(name)) for name in names]
    if not found:
        differing = ", ".join(_differing(before.cases[0], after.cases[0])) or "nothing that both name"
        raise AnnopipeError(
            f"{before.path} and {after.path} have no case in common: their first ones differ in {differing}; run both "
            "with the same options"
        )
    return found


def _differing(before: Case, after: Case) -> Iterator[str]:
    old, new = before.compared_settings(), after.compared_settings()
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield f"{name} ({old.get(name)} and {new.get(name)})"


def ranking(rows: Sequence[Measurement]) -> list[tuple[int, Measurement]]:
    """The rows by their times, the fastest first, with their places.

    Those within the noise of the first of a place share it; with too few repetitions each has its own.

    >>> times = [("a", 1.0), ("b", 3.0), ("c", 1.1)]
    >>> [place for place, _ in ranking([Measurement(n, s, s - 0.1, s + 0.1, None, 3) for n, s in times])]
    [1, 1, 3]
    """
    found: list[tuple[int, Measurement]] = []
    for index, row in enumerate(sorted(rows, key=lambda each: each.measured_s)):
        if found:
            first = next(each for place, each in found if place == found[-1][0])
        place = found[-1][0] if found and row.differs_from(first) is False else index + 1
        found.append((place, row))
    return found
