"""What became of each run of a graph: captured or not, and why."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

__all__ = ["CaptureReport", "RunReport"]


@dataclasses.dataclass(frozen=True, slots=True)
class RunReport:
    """One run.

    region, phase: of its first node.  operations: how many it has.
    copied_bytes: what is copied in and out in every call.  reason: why it is not captured; "" when it is.
    """

    region: str
    phase: str
    operations: int
    copied_bytes: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class CaptureReport:
    """The runs of a graph, or of all graphs of a rank.

    runs: one row each.  eager: why other nodes run operation by operation, and how many.
    """

    runs: tuple[RunReport, ...] = ()
    eager: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def captured(self) -> tuple[RunReport, ...]:
        """The runs that are captured."""
        return tuple(row for row in self.runs if not row.reason)

    @property
    def reasons(self) -> dict[str, int]:
        """Why operations are launched one by one, and how many."""
        found = collections.Counter(self.eager)
        for row in self.runs:
            if row.reason:
                found[row.reason] += row.operations
        return dict(found.most_common())

    def __str__(self) -> str:
        runs, left = self.captured, sum(self.reasons.values())
        operations, megabytes = sum(row.operations for row in runs), sum(row.copied_bytes for row in runs) / 1e6
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        head = (
            f"{count} captured, {operations} operations, {megabytes:.1f} MB copied in and out a call; "
            f"{left} operations launched one by one"
        )
        return "\n".join([head, *(f"  {reason}: {number}" for reason, number in self.reasons.items())])

    @classmethod
    def joined(cls, reports: Iterable["CaptureReport"]) -> "CaptureReport":
        """One report of several graphs.

        >>> print(CaptureReport.joined([CaptureReport((RunReport("a", "forward", 9),)), CaptureReport()]))
        1 run captured, 9 operations, 0.0 MB copied in and out a call; 0 operations launched one by one
        """
        reports = list(reports)
        eager: collections.Counter[str] = collections.Counter()
        for report in reports:
            eager.update(report.eager)
        return cls(tuple(row for report in reports for row in report.runs), eager)
