"""Graphs whose stretches run as their forms say, operation by operation: compilation without the compiler."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from annopipe.compiling.forms import Bound, Compiled, NotCompiled, bind, numbers_of
from annopipe.compiling.lowering import lowered
from annopipe.compiling.rebuilding import graph_of
from annopipe.compiling.stretches import Cut, Stretch, cut
from annopipe.graphs.stage_graph import StageGraph


def interpreting(graph: StageGraph, program: Sequence[str] | None = None) -> tuple[StageGraph, list[Bound]]:
    """The graph with every stretch that has a form as one call, and these stretches."""
    own = cut(graph, program)
    numbers = numbers_of(own, graph.graph)
    found = [_bound(stretch, own, numbers) for stretch in own.stretches]
    bounds = [bound for bound in found if bound is not None]
    return lowered(graph, own, [(bound, interpreted(bound.form)) for bound in bounds]), bounds


def _bound(stretch: Stretch, own: Cut, numbers: Mapping[tuple[str, Any], fx.Node]) -> Bound | None:
    try:
        return bind(stretch, own, numbers)
    except NotCompiled:
        return None


def interpreted(form: str) -> Compiled:
    """A form as a function that takes a list of values and empties it."""
    module = fx.GraphModule({}, graph_of(form))

    def run(values: list[Any]) -> Any:
        taken = list(values)
        values.clear()
        return module(*taken)

    return run
