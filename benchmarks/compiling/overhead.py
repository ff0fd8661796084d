"""What running a graph costs besides its computation: per node, per compiled stretch and per action."""

import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

import annopipe as ap
from annopipe.compiling.lowering import packing
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph
from annopipe.pipeline.stages.graph_call import GraphCall

__all__ = ["runner_us"]

_NODES = 1000
_REPEATS, _TRIES = 20, 15
_MICROBATCHES = 16


def runner_us() -> dict[str, float]:
    """Microseconds of processor time, the least of several tries, by what they are for."""
    value = torch.ones(1)
    chain, empty = _chain(_NODES), GraphCall(_chain(0))
    generated, call = fx.GraphModule({}, chain.graph), GraphCall(chain)
    per_call = _us(lambda: empty({"input.x": value}))
    return {
        "node, code that fx generates": _us(lambda: generated(value)) / _NODES,
        "node, annopipe": (_us(lambda: call({"input.x": value})) - per_call) / _NODES,
        "call of a graph, annopipe": per_call,
        "compiled stretch, beyond its kernels": (_us(_stretches(_NODES, value)) - per_call) / _NODES,
        "action of a pipeline, beyond its graph": _action_us(),
    }


def _us(run: Callable[[], Any]) -> float:
    found = []
    for _ in range(_TRIES):
        started = time.process_time()
        for _ in range(_REPEATS):
            run()
        found.append((time.process_time() - started) / _REPEATS)
    return min(found) * 1e6


def _same(x: Any) -> Any:
    return x


def _chain(nodes: int) -> StageGraph:
    """Nodes that do nothing, one after the other."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(nodes):
        node = graph.call_function(_same, (node,))
    graph.output((node,))
    example = torch.ones(1)
    return StageGraph(graph, [Port.of("input", "x", example)], [Port.of("output", "", example)])


def _run(values: list[Any]) -> tuple[Any, ...]:
    """In the place of a compiled function."""
    (x,) = values
    values.clear()
    return (x,)


def _stretches(count: int, value: torch.Tensor) -> Callable[[], Any]:
    """Stretches of one value that compute nothing, as ``lowered`` writes them."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    pack = packing([value.stride()])
    for _ in range(count):
        results = graph.call_function(_run, (graph.call_function(pack, (node,)),))
        node = graph.call_function(operator.getitem, (results, 0))
    graph.output((node,))
    example = torch.ones(1)
    call = GraphCall(StageGraph(graph, [Port.of("input", "x", example)], [Port.of("output", "", example)]))
    return lambda: call({"input.x": value})


def _action_us() -> float:
    """An action of a pipeline on one rank, forwards and backwards of a tiny stage, less the graphs that it runs."""
    torch.manual_seed(0)
    stage = nn.Linear(4, 4)
    schedule = ap.schedule("1f1b", ranks=1, microbatches=_MICROBATCHES)
    pipe = ap.Pipeline([stage], schedule, loss_fn=nn.functional.mse_loss)
    x, target = torch.ones(_MICROBATCHES, 4), torch.zeros(_MICROBATCHES, 4)
    pipe.step(x, target=target)
    graphs = ap.trace(stage, (x[:1],), loss_fn=nn.functional.mse_loss, target=target[:1])
    if graphs.backward is None:
        raise ap.PipelineError("the stage has no backward")
    values = {**graphs.bind(stage), **graphs.bind_inputs(x[:1], target=target[:1])}
    forward = _call(graphs.forward, values)
    values |= graphs.forward(values)
    values |= {port.name: torch.ones(()) for port in graphs.backward.inputs if port.role == "tangent"}
    backward = _call(graphs.backward, values)
    actions = 2 * _MICROBATCHES
    return _us(lambda: pipe.step(x, target=target)) / actions - (_us(forward) + _us(backward)) / 2


def _call(graph: StageGraph, values: dict[str, Any]) -> Callable[[], Any]:
    """The code of a graph on values that are there: what an action cannot do without."""
    module, arguments = graph.module, _arguments(graph, values)

    def run() -> Any:
        with torch.no_grad():
            return module(*arguments)

    return run


def _arguments(graph: StageGraph, values: dict[str, Any]) -> Sequence[Any]:
    return [values[port.name] for port in graph.inputs]
