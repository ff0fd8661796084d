"""Other forms of the graphs that the actions of one rank run, made all together before the step that runs them.

Compiled: what lies between communication is compiled. Captured: runs of operations are replayed as CUDA graphs; of a
compiled graph, too. The graphs that gather parameters and reduce gradients, and a loss between nano-batches, stay as
they are.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from annopipe.capturing import graphs as capturing
from annopipe.capturing.graphs import CapturedGraph, captured
from annopipe.capturing.tape import Recorder
from annopipe.compiling import graphs as compiling
from annopipe.compiling.graphs import CompiledGraph, compile_graphs
from annopipe.compiling.report import CompileReport
from annopipe.graphs.stage_graph import StageGraph
from annopipe.ordering.streams import on_tagged_streams
from annopipe.pipeline.stages.combined import Combined, Parts, parts_of
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.actions import COMPUTE, Action

__all__ = ["Forms", "stage_forms"]

_ADDED_UP = frozenset({"param_grad", "unreduced"})


@dataclasses.dataclass(frozen=True)
class Forms:
    """What became of the graphs of a rank.

    compiled: what is compiled; None when nothing is to be.  captured: the captured graphs; None when there are none.
    """

    compiled: CompileReport | None = None
    captured: Sequence[CapturedGraph] | None = None


@dataclasses.dataclass(frozen=True)
class _Job:
    """A graph that is run: the keys of its nodes in program order, whether it is on one stream, who runs its forms."""

    graph: StageGraph
    program: Sequence[str] | None
    is_on_one_stream: bool
    run_compiled: Callable[[CompiledGraph], None]
    run_captured: Callable[[CapturedGraph], None]


def stage_forms(
    actions: Sequence[Action],
    stages: Mapping[int, LocalStage],
    combined: Mapping[Parts, Combined],
    compiles: bool,
    recorder: Recorder | None,
    *,
    fixed_sums: bool,
) -> Forms:
    """Have stages and combinations run compiled graphs, captured ones, or both.

    Args:
        actions, stages, combined: of this rank.
        compiles: whether graphs are compiled.
        recorder: what captures them; None: nothing is captured.
        fixed_sums: whether gradients wait for their turn; else they are added up before the next action.

    Raises GraphError when there is no C++ compiler, for graphs that run on several CUDA streams, and for graphs that
    are to be captured and do not run on a GPU.
    """
    jobs = [*_combined_jobs(combined), *_single_jobs(actions, stages, combined)]
    graphs, report = [job.graph for job in jobs], None
    if compiles:
        compiling.check_one_stream(all(job.is_on_one_stream for job in jobs))
        found = compile_graphs([(job.graph, job.program) for job in jobs])
        for job, compiled in zip(jobs, found, strict=True):
            job.run_compiled(compiled)
        graphs, report = [*found], CompileReport.joined(compiled.report for compiled in found)
    if recorder is None:
        return Forms(report)
    capturing.check_captured(graphs)
    capturing.check_one_stream(all(job.is_on_one_stream for job in jobs))
    forms = [captured(graph, recorder, () if fixed_sums else _ADDED_UP) for graph in graphs]
    for job, form in zip(jobs, forms, strict=True):
        job.run_captured(form)
    return Forms(report, forms)


def _combined_jobs(combined: Mapping[Parts, Combined]) -> list[_Job]:
    return [
        _Job(own.plan.graph, own.plan.program_order, own.plan.is_on_one_stream, own.run_compiled, own.run_captured)
        for own in combined.values()
    ]


def _single_jobs(
    actions: Sequence[Action], stages: Mapping[int, LocalStage], combined: Mapping[Parts, Combined]
) -> list[_Job]:
    jobs, seen = [], set[tuple[str, int]]()
    for action in actions:
        alone = action.kind in COMPUTE and not action.parts and action.nano_batches == 1
        if not alone or parts_of(action) in combined or (action.kind, action.stage) in seen:
            continue
        seen.add((action.kind, action.stage))
        kept = stages[action.stage].lanes(action.microbatch or 0).kept[0]
        if (graph := kept.graphs.of_kind(action.kind)) is not None:
            run = partial(kept.run_as, action.kind)
            jobs.append(_Job(graph, None, on_tagged_streams(graph) is graph, run, run))
    return jobs
