"""The best schedules of a model over the degrees of a cluster: a glance at each that can win, then a search of a few.

Every possible degree is priced. One whose bound is above what another is estimated at is not looked at, nor are those
behind the first 32 by their bounds. A glance generates a few schedules of few microbatches; the others take what the
busiest rank works for each of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from annopipe.costs.cluster import Cluster
from annopipe.errors import CostError
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.degrees import Degrees
from annopipe.tuning.finishing import reduced_by_rank
from annopipe.tuning.model_workload import ModelWorkload
from annopipe.tuning.search import Progress, Search
from annopipe.tuning.table_search import search_table
from annopipe.tuning.workers import Workers
from annopipe.tuning.workload import Workload

__all__ = ["DegreeSearch"]

_GLANCES, _SEARCHED = 0.4, 3  # of the effort, for glances; how many degrees are searched then
_LEAST_SHARE = 16  # no glance has less than this part of the effort of all
_MOST = 32  # glances
_FEW = 2  # times the ranks: microbatches of a glance
Report = Callable[[Progress], None] | None


@dataclass(frozen=True, eq=False)
class _Option:
    """Degrees with their workload, and the bound of its step."""

    degrees: Degrees
    work: Workload
    bound: float


class DegreeSearch:
    """One search over degrees.

    Args:
        work: the model and its batch.
        cluster: the devices.
        memory: of one rank; None: the cluster's.
        seed, effort, copies, workers, report: as for ``ap.tune``.
    """

    def __init__(
        self,
        work: ModelWorkload,
        cluster: Cluster,
        *,
        memory: float | None,
        seed: int,
        effort: int,
        copies: int,
        workers: int,
        report: Report,
    ) -> None:
        self._work, self._cluster, self._memory = work, cluster, memory
        self._seed, self._effort, self._copies, self._workers = seed, effort, copies, workers
        self._report, self._looked_at = report, 0
        self._why: dict[Degrees, str] = {}
        self._without_layers = "none of the schedules tried can be run"

    def run(self, options: Sequence[Degrees], best: int) -> list[Candidate]:
        """Candidates of the degrees that were searched, the shortest step first; the library's best comes last.

        Raises CostError where no degrees have a schedule that keeps to the memory.
        """
        estimates = self._estimates(self._priced(options))
        ranked = sorted(estimates, key=lambda option: (estimates[option], option.degrees))
        found: list[Candidate] = []
        for option in ranked:
            if len({each.degrees for each in found}) == _SEARCHED:
                break
            if not found or option.bound < min(each.step for each in found):
                found += self._searched(option, best)
        if not found:
            why = next(iter(self._why.values()), self._without_layers)
            raise CostError(f"{self._work.name} on {self._cluster.devices} devices: no degrees fit; {why}")
        found.sort(key=lambda each: each.step)
        of_library = [each for each in found if each.trial.rules.library][:1]
        return list(dict.fromkeys([*found[:best], *of_library]))

    def _priced(self, options: Sequence[Degrees]) -> list[_Option]:
        """What fits into memory, the lowest bound first."""
        found: list[_Option] = []
        for number, degrees in enumerate(sorted(options, key=lambda one: (one.microbatch_size, one.expert, one.ranks))):
            self._tell(f"pricing {degrees}", 0.2 * number / len(options), math.inf)
            smaller = [other for other in self._why if replace(degrees, microbatch_size=other.microbatch_size) == other]
            if smaller:
                continue  # what does not fit does not fit with larger microbatches
            model = self._work.price(self._cluster.hardware, degrees.expert, degrees.microbatch_size)
            if len(model.all_layers) < degrees.ranks:
                least = f"{len(model.all_layers)} layers are fewer than {degrees.ranks} ranks: take fewer ranks"
                self._without_layers = f"{degrees}: {least}"
                continue
            try:
                work = self._work.at(self._cluster, degrees, self._memory)
            except CostError as error:
                self._why[degrees] = f"{degrees}: {error}"
            else:
                found.append(_Option(degrees, work, lower_bound(work, copies=self._copies)))
        return sorted(found, key=lambda option: (option.bound, option.degrees))

    def _estimates(self, options: Sequence[_Option]) -> dict[_Option, float]:
        """About what the steps take of those that have the lowest bounds."""
        found: dict[_Option, float] = {}
        share = max(1, int(_GLANCES * self._effort / max(1, min(len(options), _LEAST_SHARE))))
        for number, option in enumerate(options[:_MOST]):
            shortest = min(found.values(), default=math.inf)
            if option.bound >= shortest:
                break
            self._tell(f"looking at {option.degrees}", 0.2 + 0.4 * number / min(len(options), _MOST), shortest)
            estimate = self._glance(option, share)
            if estimate < math.inf:
                found[option] = estimate
        return found

    def _glance(self, option: _Option, effort: int) -> float:
        work = option.work
        fewer = replace(work, microbatches=min(work.microbatches, _FEW * work.ranks))
        with Workers(fewer, self._workers) as processes:
            search = Search(fewer, processes, seed=self._seed, effort=effort, copies=self._copies)
            ranked = search.glance()
        if not ranked:
            self._why[option.degrees] = (
                f"{option.degrees}: none of {len(search.found)} schedules can be run{search.why()}"
            )
            return math.inf
        estimates = []
        for each in ranked[:4]:
            layout = each.trial.layout
            steady = max(layout.loads(work, hidden=each.trial.rules.pair is not None))
            step = each.score.makespan + (work.microbatches - fewer.microbatches) * steady
            estimates.append(step + max(reduced_by_rank(work, layout)))
        return min(estimates)

    def _searched(self, option: _Option, best: int) -> list[Candidate]:
        self._tell(f"searching {option.degrees}", 0.6, option.bound)
        try:
            return search_table(
                option.work,
                seed=self._seed,
                effort=max(1, int((1.0 - _GLANCES) * self._effort / _SEARCHED)),
                copies=self._copies,
                workers=self._workers,
                best=best,
                report=self._report,
                degrees=option.degrees,
            )
        except CostError as error:
            self._why[option.degrees] = f"{option.degrees}: {error}"
            return []

    def _tell(self, part: str, share: float, best: float) -> None:
        self._looked_at += 1
        if self._report is not None:
            self._report(Progress(part, share, best, self._looked_at))
