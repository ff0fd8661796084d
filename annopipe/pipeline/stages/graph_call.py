"""Call a stage graph, or several as one combined graph, on the values of microbatches, with little overhead.

Eager autograd frees what a backward has used while the rest of it runs. So does a graph here: it is called with one
list, takes its values out of it, and generated code forgets each value after its last use.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes
from annopipe.pipeline.profiling import is_profiled, with_ranges

__all__ = ["GraphCall", "taking"]


class GraphCall:
    """One graph, ready to be called with one mapping of values per lane.

    Shapes are not looked at: they were agreed on when the pipeline was prepared.
    """

    def __init__(self, graph: StageGraph, lanes: Sequence[str] = ()) -> None:
        # Not the module, which prints what fails and forgets the line; nobody can have put a hook on it.
        self._forward = taking(graph).forward
        self._graph = graph
        self._inputs = [_split(port, lanes) for port in reversed(graph.inputs)]  # they are taken from the end
        self._outputs = [_split(port, lanes) for port in graph.outputs]
        self._lanes = max(1, len(lanes))
        self._devices = sorted({port.device for port in graph.inputs if port.device not in ("", "meta")})

    def __call__(self, *values: dict[str, Any]) -> list[dict[str, Any]]:
        """The results, by port name, one dictionary per lane; the dictionaries of values are empty afterwards."""
        given = [values[lane][name] for lane, name in self._inputs]
        for own in values:
            own.clear()
        with torch.no_grad():
            if self._graph.around is not None or any(map(torch.is_autocast_enabled, self._devices)):
                found = self._in_context(given)
            else:
                found = self._now(given)
        results: list[dict[str, Any]] = [{} for _ in range(self._lanes)]
        for (lane, name), value in zip(self._outputs, found, strict=True):
            results[lane][name] = value
        return results

    def _in_context(self, given: list[Any]) -> Any:
        """Without autocast, since casts are nodes of the graph, and in the graph's own context."""
        with contextlib.ExitStack() as stack:
            if self._graph.around is not None:
                stack.enter_context(self._graph.around())
            for device in self._devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            return self._now(given)

    @property
    def _now(self) -> Callable[..., Any]:
        return self._with_ranges if is_profiled() else self._forward

    @functools.cached_property
    def _with_ranges(self) -> Callable[..., Any]:
        run: Callable[..., Any] = taking(with_ranges(self._graph)).forward
        return run


def taking(graph: StageGraph) -> fx.GraphModule:
    """The graph as a module that takes its values from the end of a list, which is empty before anything is computed.

    Whoever calls a function holds its arguments until it returns, so that no value can be freed before.
    """
    copy = graph.copy()
    inputs = input_nodes(copy.graph)
    with copy.graph.inserting_before(next(iter(copy.graph.nodes))):
        values = copy.graph.placeholder("values")
    first = next(iter(body(copy.graph)), copy.graph.output_node())
    with copy.graph.inserting_before(first):
        for node in inputs:
            node.replace_all_uses_with(copy.graph.call_method("pop", (values,)))
            copy.graph.erase_node(node)
    return copy.module


def _split(port: Port, lanes: Sequence[str]) -> tuple[int, str]:
    lane, _, name = port.name.partition(".")
    return (lanes.index(lane), name) if lane in lanes else (0, port.name)
