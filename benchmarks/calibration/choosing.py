"""From what was measured to schedules: the workload, the library's schedules on it, and what ``ap.tune`` finds."""

import dataclasses
from collections.abc import Callable, Sequence

import annopipe as ap
from annopipe.errors import CostError
from annopipe.tuning.baseline import library_trials
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.search import Progress
from annopipe.tuning.trial import scored
from benchmarks.calibration.plan import Measured
from benchmarks.moe.case import MoeCase

__all__ = ["candidates", "workload"]

_TRANSFERS_EACH_WAY = 2  # of a block: dispatch and combine


def workload(case: MoeCase, measured: Measured) -> ap.Workload:
    """The blocks as measured; transfers and messages by the lines of the calibration."""
    comm = _TRANSFERS_EACH_WAY * max(0.0, measured.exchange.seconds(case.transfer_bytes) - measured.issue_s)
    send = measured.send
    return ap.Workload(
        tuple(dataclasses.replace(layer, comm=comm) for layer in measured.layers),
        ranks=case.pipeline_ranks,
        microbatches=case.microbatches,
        message=case.message_bytes / send.bandwidth,
        latency=send.latency_s,
        name="bench calibration",
    )


def candidates(
    work: ap.Workload,
    names: Sequence[str],
    *,
    found: int,
    effort: int,
    seed: int,
    report: Callable[[Progress], None] | None = None,
) -> list[ap.Candidate]:
    """The library's schedules of these names, each with its best even split, and the best of the search.

    Of the search so many are taken, with different stages each, half of them (rounded up) in one copy of the model.

    Raises CostError for a name that the library does not have for this workload.
    """
    chosen = []
    bound = lower_bound(work, copies=2)
    for name in names:
        trials = [trial for trial in library_trials(work) if trial.rules.library == name]
        if not trials:
            raise CostError(f"no schedule {name!r} of the library fits {work!r}: leave it out")
        chosen.append(ap.Candidate.of(work, min(trials, key=lambda trial: scored(work, trial)), bound))
    for copies, count in ((1, (found + 1) // 2), (2, found // 2)):
        if not count:
            continue
        ranked = ap.tune(work, copies=copies, effort=effort, seed=seed, best=200, report=report)
        ranked = [each for each in ranked if not each.trial.rules.library]
        ranked = [each for each in ranked if each.trial.layout.placement.copies == copies] or ranked
        by_layout = {each.trial.layout: each for each in reversed(ranked)}
        chosen += sorted(by_layout.values(), key=lambda each: each.timeline.makespan)[:count]
    return chosen
