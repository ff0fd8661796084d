"""What the pictures show, one picture each: where a row has it, and how it is written."""

from collections.abc import Callable
from dataclasses import dataclass

from annopipe.simulation.wording import seconds_text
from benchmarks.moe_page.results import Row

__all__ = ["QUANTITIES", "Quantity", "bytes_text"]

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that a row has measured, simulated, or both.

    Attributes:
        stem: of the picture's file.
        spread: the shortest and the longest of what was measured.
        binary: whether its axis counts in powers of two.
    """

    title: str
    stem: str
    measured: Callable[[Row], float | None]
    simulated: Callable[[Row], float | None]
    spread: Callable[[Row], tuple[float, float] | None]
    text: Callable[[float], str]
    binary: bool = False

    def of(self, row: Row) -> tuple[float | None, float | None]:
        """What is measured, and what is simulated."""
        return self.measured(row), self.simulated(row)


def bytes_text(amount: float) -> str:
    """An amount of memory with the unit that fits.

    >>> bytes_text(3 * 2**30), bytes_text(1536), bytes_text(12)
    ('3 GiB', '1.5 KiB', '12 B')
    """
    scale, unit = next((entry for entry in _UNITS if amount >= entry[0]), (1, "B"))
    return f"{amount / scale:.4g} {unit}"


STEP = Quantity(
    "Step time",
    "step_time",
    lambda row: row.measured.median_s if row.measured else None,
    lambda row: row.predicted.seconds if row.predicted else None,
    lambda row: (min(row.measured.seconds), max(row.measured.seconds)) if row.measured else None,
    seconds_text,
)
EXPOSED = Quantity(
    "Exposed communication, the ranks of a pipeline together",
    "exposed_communication",
    lambda row: row.measured.exposed_s if row.measured else None,
    lambda row: row.predicted.exposed_s if row.predicted else None,
    lambda _: None,
    seconds_text,
)
MEMORY = Quantity(
    "Peak memory of a rank",
    "peak_memory",
    lambda row: row.measured.peak_bytes if row.measured else None,
    lambda row: row.predicted.peak_bytes if row.predicted else None,
    lambda _: None,
    bytes_text,
    binary=True,
)
QUANTITIES = (STEP, EXPOSED, MEMORY)
