"""``ap.tune``: the best schedule that can be found for a workload."""

from collections.abc import Callable
from dataclasses import replace
from os import PathLike

from annopipe.costs.cluster import Cluster
from annopipe.errors import CostError
from annopipe.processors import processors
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.degree_search import DegreeSearch
from annopipe.tuning.layer_checks import AMOUNT, is_amount
from annopipe.tuning.model_workload import ModelWorkload
from annopipe.tuning.search import Progress
from annopipe.tuning.table_search import search_table
from annopipe.tuning.workload import Workload

__all__ = ["DEFAULT_EFFORT", "tune"]

DEFAULT_EFFORT = 650_000


def tune(
    work: Workload | ModelWorkload,
    cluster: Cluster | None = None,
    *,
    memory: float | None = None,
    ranks: int | None = None,
    data: int | None = None,
    expert: int | None = None,
    microbatch_size: int | None = None,
    seed: int = 0,
    effort: int = DEFAULT_EFFORT,
    copies: int = 2,
    workers: int | None = None,
    best: int = 10,
    report: Callable[[Progress], None] | None = None,
    results: str | PathLike[str] | None = None,
) -> list[Candidate]:
    """Search for schedules of a workload; the shortest step first.

    What is searched: where stages begin, how many there are, on which ranks, in one copy of the model or two; which
    action is the most urgent, how many microbatches are in flight, on each rank; what is computed again;
    nano-batches. The library's schedules with layers evenly over their stages are among the candidates: no result is
    worse than the best of them.

    Of a model at no fixed degrees, also: the ranks of a pipeline, the pipelines, how many of these share the experts,
    and the size of a microbatch. Each candidate then says its ``degrees``; its ``step`` has the sum of gradients in it.

    Args:
        work: the layers, the ranks and the microbatches; or what ``ap.Workload.from_model`` returns without ranks.
        cluster: the devices that a model is for. Of a workload, whose ranks then have to divide the devices, it only
            gives the memory where the workload has none, in bytes.
        memory: most that a rank may hold, instead of the workload's or the cluster's.
        ranks, data, expert, microbatch_size: of a model, what is not searched.
        seed: the same one finds the same, on every machine and with any number of workers.
        effort: how many actions may be generated, beside those of the library's schedules; the default takes some
            twenty seconds on two cores.
        copies: 1 leaves out placements with two copies of the model, which double what parameters occupy.
        workers: processes that search; None: one for each core.
        best: how many candidates to return; the best of the library comes last if it is not among them.
        report: called with the progress, now and then.
        results: a file, made if it is not there, that keeps what was tried. Ctrl-C then returns the best so far (the
            last progress says "interrupted"), and the same call goes on from there to what it would have found.

    Raises CostError for memory that no schedule can keep to, or none that was tried, and for what is no count.

    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 1.0, activation=1.0),) * 4, ranks=2, microbatches=4)
    >>> tune(work, effort=5_000, workers=1)[0].timeline.makespan
    24.0
    """
    fixed = {"ranks": ranks, "data": data, "expert": expert, "microbatch_size": microbatch_size}
    _check_counts(copies, seed, effort=effort, workers=1 if workers is None else workers, best=best)
    _check(cluster, memory, report)
    processes = processors() if workers is None else workers
    if isinstance(work, ModelWorkload):
        if cluster is None:
            raise CostError(f"{work.name} has no degrees yet: give the annopipe.Cluster to search them for")
        if results is not None:
            raise CostError(
                f"{work.name} has no degrees yet, and results are of one workload: search without results=, or save a "
                "workload of some degrees and search that"
            )
        search = DegreeSearch(
            work, cluster, memory=memory, seed=seed, effort=effort, copies=copies, workers=processes, report=report
        )
        return search.run(work.degrees(cluster, **fixed), best)
    table = _table(work, cluster, memory, [name for name, value in fixed.items() if value is not None])
    return search_table(
        table, seed=seed, effort=effort, copies=copies, workers=processes, best=best, report=report, results=results
    )


def _table(work: object, cluster: Cluster | None, memory: float | None, fixed: list[str]) -> Workload:
    if not isinstance(work, Workload):
        raise CostError(f"work is {work!r}: give an annopipe.Workload or ModelWorkload")
    if fixed:
        raise CostError(f"workload {work.name!r} has its degrees already: leave out {fixed[0]}")
    if cluster is not None:
        if cluster.devices % work.ranks:
            raise CostError(f"workload {work.name!r}: {work.ranks} ranks do not divide {cluster.devices} devices")
        memory = cluster.memory if memory is None and work.memory is None else memory
    return work if memory is None else replace(work, memory=memory)


def _check_counts(copies: int, seed: int, **counts: int) -> None:
    if type(copies) is not int or copies not in (1, 2):
        raise CostError(f"copies={copies!r}: give 1 or 2 copies of the model, at most")
    if type(seed) is not int:
        raise CostError(f"seed={seed!r}: give a whole number")
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise CostError(f"{name}={count!r}: give a whole number, 1 or more")


def _check(cluster: object, memory: object, report: object) -> None:
    if cluster is not None and not isinstance(cluster, Cluster):
        raise CostError(
            f"cluster is {cluster!r}: give an annopipe.Cluster, as annopipe.Cluster.from_toml(path) reads it"
        )
    if memory is not None and not is_amount(memory):
        raise CostError(f"memory={memory!r}: {AMOUNT}")
    if report is not None and not callable(report):
        raise CostError(f"report is {report!r}: give a function that is called with the progress")
