"""Steps of schedules beside each other, simulated: named ones with even stages, and what the search finds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from annopipe.errors import CostError
from annopipe.tuning.baseline import named_trial
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.tuner import tune
from annopipe.tuning.workload import Workload

__all__ = ["PUBLISHED_PARTITION", "PUBLISHED_TALK", "Row", "as_one_chain", "compared", "of_library"]

# Over 1F1B, graph passes alone (talk of the PyTorch team); over Megatron-LM (FlexPipe, arXiv 2510.05112).
PUBLISHED_TALK = {"zero bubble": 1.07, "DualPipe": 1.17}
PUBLISHED_PARTITION = 2.28


@dataclass(frozen=True)
class Row:
    """One schedule of one workload: seconds, bytes, and what it is faster than the first row by.

    Attributes:
        gain: the first row's step over this one's.
        account: where the step goes, by part; see ``annopipe.tuning.account``; and the sum of gradients at its end.
    """

    workload: str
    schedule: str
    step: float
    gain: float
    bubble: float
    peak_bytes: float
    account: dict[str, float]


def of_library(work: Workload, names: Iterable[str]) -> list[Candidate]:
    """The best of each named schedule of the library: which chunks it has, and whether longer stages come last."""
    trials = [named_trial(work, name) for name in names]
    return [Candidate.of(work, trial, 1.0) for trial in trials if trial is not None]


def compared(
    name: str, work: Workload, library: Sequence[str], *, base: Workload | None = None, effort: int
) -> list[Row]:
    """Named schedules, and with an effort above 0 the best that the search finds.

    base: the workload as the library's schedules are given it.

    Raises CostError where the first of them, which the others are compared with, has no meaning for the workload.
    """
    base = work if base is None else base
    candidates = of_library(base, library)
    if not candidates or candidates[0].trial.rules.library != library[0]:
        raise CostError(f"{name}: there is no {library[0]} of {base!r} to compare with: give a larger batch")
    named = len(candidates)
    if effort:
        candidates.append(tune(work, effort=effort, best=1)[0])
    first = candidates[0].step
    return [
        Row(
            name,
            each.name if place < named else f"found: {each.name}",
            each.step,
            first / each.step,
            each.timeline.bubble,
            each.timeline.peak_memory,
            {**each.account.plain(), "gradients": each.step - each.timeline.makespan},
        )
        for place, each in enumerate(candidates)
    ]


def as_one_chain(work: Workload) -> Workload:
    """Towers one after the other: what a framework makes of them that knows chains only."""
    return replace(work, layers=work.all_layers, towers=(), batch_wide=False)
