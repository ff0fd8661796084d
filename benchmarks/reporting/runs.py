"""A run of a benchmark as its JSON file has it: cases with rows of times.

A file of `annopipe bench overlap` has "cases": a case says what it was ("case") and has "rows"; a row has names (its
texts) and "measured_s", "fastest_s", "slowest_s", "times_s" and "simulated_s". In a file of `annopipe bench moe` each
configuration is a case, and its rows are those that were measured: see ``benchmarks.reporting.moe_runs``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annopipe.errors import AnnopipeError
from benchmarks.reporting.moe_runs import is_moe, moe_cases

__all__ = ["Case", "Measurement", "Run"]

_NAMES = ("runtime", "name", "schedule")
_ENOUGH = 3  # repetitions, below which nothing is said of noise
_NO_MATTER = frozenset({"rounds", "repeat", "schedules", "eager", "attaches", "policies"})  # these choose rows


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: seconds.

    Attributes:
        measured_s: the median.
        simulated_s: None where nothing was simulated.
        repetitions: how many times it ran; 0 where the file does not say.
    """

    name: str
    measured_s: float
    fastest_s: float
    slowest_s: float
    simulated_s: float | None
    repetitions: int

    def differs_from(self, other: "Measurement") -> bool | None:
        """Whether the difference is outside the noise: no repetition of one is within the range of the other.

        None where there are too few repetitions to say.

        >>> one = Measurement("a", 1.0, 0.9, 1.1, None, 3)
        >>> one.differs_from(Measurement("a", 1.3, 1.2, 1.4, None, 3)), one.differs_from(one)
        (True, False)
        """
        if min(self.repetitions, other.repetitions) < _ENOUGH:
            return None
        return self.slowest_s < other.fastest_s or other.slowest_s < self.fastest_s


@dataclass(frozen=True, slots=True)
class Case:
    """The rows that one setting of a benchmark has."""

    settings: Mapping[str, Any]
    rows: Mapping[str, Measurement]

    def compared_settings(self) -> dict[str, Any]:
        """What has to be equal for two cases to be compared: all but what chooses the rows, or how often they run."""
        return {name: value for name, value in self.settings.items() if name not in _NO_MATTER}


@dataclass(frozen=True, slots=True)
class Run:
    """All cases of a file."""

    path: Path
    cases: tuple[Case, ...]

    @classmethod
    def read(cls, path: Path) -> "Run":
        """The run of a file.

        Raises AnnopipeError for a file that is not there or is no run of a benchmark, with what is wrong.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AnnopipeError(f"cannot read a run from {path}: {error}") from error
        try:
            given = moe_cases(data) if is_moe(data) else data["cases"]
            cases = tuple(map(_case, given))
        except (KeyError, TypeError, ValueError) as error:
            raise AnnopipeError(
                f"{path} is no run of `annopipe bench moe` or `annopipe bench overlap` (written with --json): "
                f"{type(error).__name__} {error}"
            ) from error
        if not cases:
            raise AnnopipeError(f"{path} has no cases: nothing in it was measured")
        return cls(path, cases)

    def titles(self) -> list[str]:
        """For each case the settings in which it differs from the others of the run, or that it is the only one."""
        settings = [case.settings for case in self.cases]
        varying = [name for name in settings[0] if len({str(each.get(name)) for each in settings}) > 1]
        return [
            ", ".join(f"{name}={each.get(name)}" for name in varying) or ("the only case" if len(settings) == 1 else "")
            for each in settings
        ]


def _case(given: Mapping[str, Any]) -> Case:
    rows = [_measurement(row) for row in given["rows"]]
    return Case(dict(given["case"]), {row.name: row for row in rows})


def _measurement(row: Mapping[str, Any]) -> Measurement:
    simulated = row.get("simulated_s")
    return Measurement(
        _joined(row[name] for name in _NAMES if name in row),
        float(row["measured_s"]),
        float(row["fastest_s"]),
        float(row["slowest_s"]),
        None if simulated is None else float(simulated),
        len(row.get("times_s", ())),
    )


def _joined(names: Iterable[str]) -> str:
    found = " ".join(names)
    if not found:
        raise ValueError("a row has no name")
    return found
