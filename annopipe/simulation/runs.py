"""Bars joined for a still picture: neighbouring computations of one region become one run, with room for a label."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from annopipe.simulation.spans import Span
from annopipe.simulation.tasks import Kind

__all__ = ["Run", "runs"]

_PHASES = {"weight_grad": " W", "input_grad": " I", "recompute": " R"}


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of one row with one look; times in seconds.

    >>> Run(0.0, 2.0, "compute", "block0/moe/experts", "B", "weight_grad").label
    'experts W'
    """

    start: float
    end: float
    kind: Kind
    region: str
    lane: str
    phase: str
    name: str = ""

    @property
    def seconds(self) -> float:
        """Length of the run."""
        return self.end - self.start

    @property
    def label(self) -> str:
        """The region's own name, or the task's if it has none, with a letter for the part of the backward."""
        return (self.region.rpartition("/")[2] or self.name) + _PHASES.get(self.phase, "")


def runs(spans: Iterable[Span], gap: float = 0.0) -> list[Run]:
    """The spans of one row, in order of time, with computations of one look that follow each other as one run.

    Follow: the next begins at most `gap` seconds after the end of the last.

    >>> spans = [Span("compute", name, at, at + 1.0, "compute", "attention", "F") for at, name in enumerate(["q", "k"])]
    >>> [(run.start, run.end, run.label) for run in runs(spans)]
    [(0, 2.0, 'attention')]
    """
    found: list[Run] = []
    for span in spans:
        run = Run(span.start, span.end, span.kind, span.region, span.lane, span.phase, span.name)
        if found and _joins(found[-1], run, gap):
            found[-1] = replace(found[-1], end=run.end)
        else:
            found.append(run)
    return found


def _joins(last: Run, run: Run, gap: float) -> bool:
    same = (last.region, last.lane, last.phase) == (run.region, run.lane, run.phase)
    return same and last.kind == run.kind == "compute" and run.start - last.end <= gap
