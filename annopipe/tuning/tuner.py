"""``ap.tune``: the best schedule that can be found for a workload."""

import os
from collections.abc import Callable
from dataclasses import replace

from annopipe.errors import CostError
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.search import Progress, Search
from annopipe.tuning.workers import Workers
from annopipe.tuning.workload import Workload

__all__ = ["DEFAULT_EFFORT", "tune"]

DEFAULT_EFFORT = 1_200_000


def tune(
    work: Workload,
    *,
    memory: float | None = None,
    seed: int = 0,
    effort: int = DEFAULT_EFFORT,
    copies: int = 2,
    workers: int | None = None,
    best: int = 10,
    report: Callable[[Progress], None] | None = None,
) -> list[Candidate]:
    """Search for schedules of a workload; the shortest step first.

    What is searched: where stages begin, how many there are, on which ranks, in one copy of the model or two; which
    action is the most urgent, how many microbatches are in flight, on each rank; what is computed again;
    nano-batches. The library's schedules with layers evenly over their stages are among the candidates: no result is
    worse than the best of them.

    Args:
        work: the layers, the ranks and the microbatches.
        memory: most that a rank may hold, instead of the workload's.
        seed: the same one finds the same, on every machine and with any number of workers.
        effort: how many actions may be generated, beside those of the library's schedules; the default takes some
            twenty seconds on two cores.
        copies: 1 leaves out placements with two copies of the model, which double what parameters occupy.
        workers: processes that search; None: one for each core.
        best: how many candidates to return; the best of the library comes last if it is not among them.
        report: called with the progress, now and then.

    Raises CostError for memory that no schedule can keep to, or none that was tried, and for what is no count.

    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 1.0, activation=1.0),) * 4, ranks=2, microbatches=4)
    >>> tune(work, effort=5_000, workers=1)[0].timeline.makespan
    24.0
    """
    _check(work, effort=effort, copies=copies, workers=1 if workers is None else workers, best=best)
    if memory is not None:
        work = replace(work, memory=memory)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with Workers(work, count if workers is None else workers) as processes:
        search = Search(work, processes, seed=seed, effort=effort, copies=copies, report=report)
        found = search.run()
    if not found:
        raise CostError(f"workload {work.name!r}: none of {len(search.found)} schedules tried can be run{search.why()}")
    bound = lower_bound(work, copies=copies)
    of_library = [each for each in found if each.trial.rules.library][:1]
    return [Candidate.of(work, each.trial, bound) for each in dict.fromkeys([*found[:best], *of_library])]


def _check(work: Workload, *, copies: int, **counts: int) -> None:
    if not isinstance(work, Workload):
        raise CostError(f"work is {work!r}: give an annopipe.Workload")
    if copies not in (1, 2):
        raise CostError(f"copies={copies!r}: give 1 or 2 copies of the model, at most")
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise CostError(f"{name}={count!r}: give a whole number, 1 or more")
