"""``compile_graph``: a stage graph whose stretches of computation are compiled, and what became of each."""

import time
from collections.abc import Sequence
from typing import Any

from torch import fx

from annopipe.compiling.building import build
from annopipe.compiling.forms import Bound, NotCompiled, bind, numbers_of
from annopipe.compiling.lowering import lowered
from annopipe.compiling.report import CompileReport, StretchReport
from annopipe.compiling.stretches import Cut, Stretch, cut
from annopipe.compiling.worth import not_worth
from annopipe.errors import GraphError
from annopipe.graphs.stage_graph import StageGraph

__all__ = ["CompiledGraph", "check_one_stream", "compile_graph", "compile_graphs"]


class CompiledGraph(StageGraph):
    """A stage graph, ready to run, whose stretches of computation are compiled.

    Attributes:
        report: what is compiled, and what runs eagerly, and why.
        source: the graph as it was, operation by operation.
    """

    def __init__(self, graph: StageGraph, report: CompileReport, source: StageGraph) -> None:
        super().__init__(graph.graph, graph.inputs, graph.outputs, attributes=graph.attributes, guards=graph.guards)
        self.report, self.source = report, source


def compile_graph(
    graph: StageGraph, program: Sequence[str] | None = None, *, helpers: int | None = None
) -> CompiledGraph:
    """Compile a graph's stretches of computation with Inductor; launches, waits and host reads stay in their order.

    A stretch is computation of one region and phase between communication; where stretches begin and end does not
    depend on the order of the graph, so all orders of it give the same bits. Sizes that depend on data need no new
    compilation. What cannot be compiled runs as before; ``report`` says what, and why.

    Args:
        graph: in any legal order.
        program: the keys of its nodes in program order, for a graph in another one; ``OverlapPlan.compiled`` knows it.
        helpers: processes that compile besides this one; None: as there are free processors.

    Raises GraphError when there is no C++ compiler, and for a program that is not the graph's.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    >>> print(ap.compile_graph(graphs.forward).report)
    0 stretches compiled, 0 distinct, in 0.0 s; 1 node runs eagerly
      a library call, or less than two operations to fuse: 1
    """
    if not isinstance(graph, StageGraph):
        raise GraphError(f"compile_graph takes a stage graph, got {type(graph).__name__}: pass graphs.forward")
    if helpers is not None and (type(helpers) is not int or helpers < 0):
        raise GraphError(f"helpers={helpers!r}: give a number of processes, 0 or more, or None")
    if isinstance(graph, CompiledGraph):
        return graph
    return compile_graphs([(graph, program)], helpers=helpers)[0]


def check_one_stream(is_one: object) -> None:
    """Raises GraphError for a graph that would run on several CUDA streams."""
    if not is_one:
        raise GraphError(
            "a compiled graph runs on one CUDA stream, and regions or the plan put nodes on others: leave out stream= "
            "of ap.region and streams= of ap.overlap, or do not compile"
        )


def compile_graphs(
    graphs: Sequence[tuple[StageGraph, Sequence[str] | None]], *, helpers: int | None = None
) -> list[CompiledGraph]:
    """Compile several graphs, each with its program order, together: stretches that they share are compiled once.

    Raises GraphError when there is no C++ compiler.
    """
    begun_s = time.perf_counter()
    cuts = [cut(graph, program) for graph, program in graphs]
    found = [_forms(own, graph.graph) for own, (graph, _) in zip(cuts, graphs, strict=True)]
    built = build((bound.form for forms in found for bound in forms if isinstance(bound, Bound)), helpers)
    results = []
    for (graph, _), own, forms in zip(graphs, cuts, found, strict=True):
        rows = [_row(stretch, bound, built) for stretch, bound in zip(own.stretches, forms, strict=True)]
        ready = [(b, built[b.form]) for b in forms if isinstance(b, Bound)]
        compiled = [(bound, function) for bound, function in ready if not isinstance(function, str)]
        report = CompileReport(tuple(rows), tuple(own.eager.values()), time.perf_counter() - begun_s)
        results.append(CompiledGraph(lowered(graph, own, compiled), report, graph))
    return results


def _forms(own: Cut, graph: fx.Graph) -> list[Bound | str]:
    """The form of each stretch, or why it is not compiled."""
    numbers = numbers_of(own, graph)
    found: list[Bound | str] = []
    for stretch in own.stretches:
        why = not_worth(stretch.nodes)
        try:
            found.append(why or bind(stretch, own, numbers))
        except NotCompiled as error:
            found.append(str(error))
    return found


def _row(stretch: Stretch, bound: Bound | str, built: dict[str, Any]) -> StretchReport:
    form = "" if isinstance(bound, str) else bound.form
    found = bound if isinstance(bound, str) else built[bound.form]
    why = found if isinstance(found, str) else ""
    return StretchReport(stretch.region, stretch.phase, stretch.lane, len(stretch.nodes), form, why)
