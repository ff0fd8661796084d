"""The best schedules of one workload, as candidates."""

from collections.abc import Callable
from os import PathLike

from annopipe.errors import CostError
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.degrees import Degrees
from annopipe.tuning.results import KeptWorkers, Results
from annopipe.tuning.search import Progress, Search
from annopipe.tuning.workers import Workers
from annopipe.tuning.workload import Workload

__all__ = ["search_table"]

_MOST_FORWARDS = 1_000_000  # of a step; a schedule has several times as many actions


def search_table(
    work: Workload,
    *,
    seed: int,
    effort: int,
    copies: int,
    workers: int,
    best: int,
    report: Callable[[Progress], None] | None = None,
    degrees: Degrees | None = None,
    results: str | PathLike[str] | None = None,
) -> list[Candidate]:
    """Search for schedules of a workload; see ``ap.tune``.

    Args:
        degrees: which the workload is of.
        results: a file that keeps what was tried; an interrupt then ends the search with the best so far.

    Raises CostError where none can be run.
    """
    if work.ranks * work.microbatches > _MOST_FORWARDS:
        raise CostError(
            f"workload {work.name!r}: {work.microbatches} microbatches on {work.ranks} ranks are more than a search "
            f"can simulate: give {_MOST_FORWARDS // work.ranks} or fewer; what more of them take is the steady state"
        )
    kept = None if results is None else Results(results, work)
    with Workers(work, workers) as processes:
        scorer = processes if kept is None else KeptWorkers(processes, kept)
        search = Search(work, scorer, seed=seed, effort=effort, copies=copies, report=report)
        try:
            found = search.run()
        except KeyboardInterrupt:
            found = search.ranked()
            if kept is None or not found:
                raise
            search.interrupted()
    if not found:
        raise CostError(f"workload {work.name!r}: none of {len(search.found)} schedules tried can be run{search.why()}")
    bound = lower_bound(work, copies=copies)
    of_library = [each for each in found if each.trial.rules.library][:1]
    return [Candidate.of(work, each.trial, bound, degrees) for each in dict.fromkeys([*found[:best], *of_library])]
