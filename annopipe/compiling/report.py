"""What became of each stretch of a graph: compiled or not, and why."""

import collections
import dataclasses
from collections.abc import Iterable

__all__ = ["CompileReport", "StretchReport"]


@dataclasses.dataclass(frozen=True, slots=True)
class StretchReport:
    """One stretch.

    region, phase, lane: where it is.  size: how many nodes it has.
    form: what is compiled; equal stretches have one.  reason: why it runs eagerly; "" when it is compiled.
    """

    region: str
    phase: str
    lane: str
    size: int
    form: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CompileReport:
    """The stretches of a graph, or of all graphs of a rank.

    stretches: one row each.  eager: for every node outside of stretches that computes, why it runs eagerly.
    seconds: how long compilation took, or finding what was compiled before.
    """

    stretches: tuple[StretchReport, ...] = ()
    eager: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def compiled(self) -> tuple[StretchReport, ...]:
        """The stretches that are compiled."""
        return tuple(row for row in self.stretches if not row.reason)

    @property
    def distinct(self) -> int:
        """How many different stretches that is."""
        return len({row.form for row in self.compiled})

    @property
    def reasons(self) -> dict[str, int]:
        """Why nodes run eagerly, and how many."""
        found: collections.Counter[str] = collections.Counter(self.eager)
        for row in self.stretches:
            if row.reason:
                found[row.reason] += row.size
        return dict(found.most_common())

    def __str__(self) -> str:
        count, nodes = len(self.compiled), sum(self.reasons.values())
        stretches = "1 stretch" if count == 1 else f"{count} stretches"
        left = "1 node runs" if nodes == 1 else f"{nodes} nodes run"
        head = f"{stretches} compiled, {self.distinct} distinct, in {self.seconds:.1f} s; {left} eagerly"
        return "\n".join([head, *(f"  {reason}: {number}" for reason, number in self.reasons.items())])

    @classmethod
    def joined(cls, reports: Iterable["CompileReport"]) -> "CompileReport":
        """One report of several graphs that were compiled together.

        >>> print(CompileReport.joined([CompileReport(eager=("a check",)), CompileReport(seconds=1.0)]))
        0 stretches compiled, 0 distinct, in 1.0 s; 1 node runs eagerly
          a check: 1
        """
        reports = list(reports)
        return cls(
            tuple(row for report in reports for row in report.stretches),
            tuple(reason for report in reports for reason in report.eager),
            max((report.seconds for report in reports), default=0.0),
        )
