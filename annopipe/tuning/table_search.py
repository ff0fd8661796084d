"""The best schedules of one workload, as candidates."""

from collections.abc import Callable

from annopipe.errors import CostError
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.degrees import Degrees
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
) -> list[Candidate]:
    """Search for schedules of a workload; see ``ap.tune``.

    degrees: which the workload is of.

    Raises CostError where none can be run.
    """
    if work.ranks * work.microbatches > _MOST_FORWARDS:
        raise CostError(
            f"workload {work.name!r}: {work.microbatches} microbatches on {work.ranks} ranks are more than a search "
            f"can simulate: give {_MOST_FORWARDS // work.ranks} or fewer; what more of them take is the steady state"
        )
    with Workers(work, workers) as processes:
        search = Search(work, processes, seed=seed, effort=effort, copies=copies, report=report)
        found = search.run()
    if not found:
        raise CostError(f"workload {work.name!r}: none of {len(search.found)} schedules tried can be run{search.why()}")
    bound = lower_bound(work, copies=copies)
    of_library = [each for each in found if each.trial.rules.library][:1]
    return [Candidate.of(work, each.trial, bound, degrees) for each in dict.fromkeys([*found[:best], *of_library])]
