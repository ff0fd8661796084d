"""From what was measured to schedules: the workload, the library's schedules on it, and what ``ap.tune`` finds."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import annopipe as ap
from annopipe.errors import CostError
from annopipe.tuning.baseline import named_trial
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.search import Progress
from annopipe.tuning.trial import Trial
from benchmarks.calibration.plan import Measured
from benchmarks.moe.case import MoeCase

__all__ = ["candidates", "check_names", "workload"]

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


def check_names(case: MoeCase, names: Iterable[str]) -> None:
    """Refuse a schedule that fits no workload of the case's sizes, before anything is measured.

    Raises CostError, naming it.
    """
    alike = ap.Workload((ap.Layer(1.0, 1.0, 1.0),) * case.blocks, case.pipeline_ranks, case.microbatches)
    for name in names:
        _named(alike, name)


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
        chosen.append(ap.Candidate.of(work, _named(work, name), bound))
    for copies, count in ((1, (found + 1) // 2), (2, found // 2)):
        if not count:
            continue
        ranked = ap.tune(work, copies=copies, effort=effort, seed=seed, best=200, report=report)
        ranked = [each for each in ranked if not each.trial.rules.library]
        ranked = [each for each in ranked if each.trial.layout.placement.copies == copies] or ranked
        by_layout = {each.trial.layout: each for each in reversed(ranked)}
        chosen += sorted(by_layout.values(), key=lambda each: each.timeline.makespan)[:count]
    return chosen


def _named(work: ap.Workload, name: str) -> Trial:
    trial = named_trial(work, name)
    if trial is None:
        raise CostError(f"no schedule {name!r} of the library fits {work!r}: leave it out")
    return trial
