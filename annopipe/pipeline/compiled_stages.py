"""Compile the graphs that the actions of one rank run, all together, before the step that runs them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from annopipe.compiling.graphs import CompiledGraph, check_one_stream, compile_graphs
from annopipe.compiling.report import CompileReport
from annopipe.graphs.stage_graph import StageGraph
from annopipe.ordering.streams import on_tagged_streams
from annopipe.pipeline.stages.combined import Combined, Parts, parts_of
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.actions import COMPUTE, Action

__all__ = ["compiled_stages"]

# A graph, the keys of its nodes in program order, and who runs it.
_Job = tuple[StageGraph, Sequence[str] | None, Callable[[CompiledGraph], None]]


def compiled_stages(
    actions: Sequence[Action], stages: Mapping[int, LocalStage], combined: Mapping[Parts, Combined]
) -> CompileReport:
    """Have stages and combinations run compiled graphs; what is compiled of them.

    The graphs that gather parameters and reduce gradients, and a loss between nano-batches, stay as they are.

    Raises GraphError when there is no C++ compiler, and for graphs that run on several CUDA streams.
    """
    jobs: list[_Job] = [(own.plan.graph, own.plan.program_order, own.run_compiled) for own in combined.values()]
    seen: set[tuple[str, int]] = set()
    for action in actions:
        alone = action.kind in COMPUTE and not action.parts and action.nano_batches == 1
        if not alone or parts_of(action) in combined or (action.kind, action.stage) in seen:
            continue
        seen.add((action.kind, action.stage))
        kept = stages[action.stage].lanes(action.microbatch or 0).kept[0]
        if (graph := kept.graphs.of_kind(action.kind)) is not None:
            jobs.append((graph, None, partial(kept.run_compiled, action.kind)))
    check_one_stream(all(own.plan.executable is own.plan.graph for own in combined.values()))
    check_one_stream(all(on_tagged_streams(graph) is graph for graph, *_ in jobs[len(combined) :]))
    found = compile_graphs([(graph, program) for graph, program, _ in jobs])
    for (_, _, run), graph in zip(jobs, found, strict=True):
        run(graph)
    return CompileReport.joined(graph.report for graph in found)
