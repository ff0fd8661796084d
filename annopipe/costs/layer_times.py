"""What each layer of a model takes, measured layer by layer: the numbers that a workload for ``ap.tune`` is made of.

needs       layers that can be called one after the other, each with what the one before returns; real values, on ranks
            that communicate where the layers do
does        traces each layer, and measures its forward, backward-input and backward-weight node by node
guarantees  modules, random numbers and gradients stay as they are
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from annopipe.costs.measurement import measure
from annopipe.costs.node_costs import NodeCosts
from annopipe.costs.stored import stored_bytes
from annopipe.errors import CostError
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.graphs.tracing import trace
from annopipe.pytrees import tree_map_only

__all__ = ["LayerTimes", "measure_layers"]

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerTimes:
    """One layer, for one microbatch: seconds and bytes.

    F, I, W: computation of its forward, backward-input and backward-weight, with what starting transfers takes.
    comm: transfers inside its forward, and inside its backward: the mean of both.
    activation: what its forward leaves for its backward.  parameters: with their gradients.
    output: what it hands to the next layer, or returns; with the loss, if it has one.
    """

    F: float
    I: float  # noqa: E741 - the field's own name
    W: float
    comm: float
    activation: int
    parameters: int
    output: int


def measure_layers(
    layers: Sequence[nn.Module],
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    target: Any = None,
    group: dist.ProcessGroup | None = None,
    repeat: int = 5,
    report: Report | None = None,
) -> list[LayerTimes]:
    """Measure the layers of a model one after the other.

    Args:
        layers: each is called with what the one before returns.
        inputs, kwargs: of the first layer: one microbatch.
        loss_fn, target: of the last layer's output, as for ``ap.Pipeline``.
        group: ranks that measure together and share the result: see ``ap.costs.measure``.
        repeat: rounds that count.
        report: called with what is measured next.

    Raises CostError where there is no layer or one has nothing to train; and what ``ap.trace`` raises.

    >>> found = measure_layers([nn.Linear(64, 64), nn.Linear(64, 8)], torch.ones(16, 64))
    >>> [layer.output for layer in found], found[1].comm
    ([4096, 512], 0.0)
    """
    if not layers:
        raise CostError("measure_layers got no layers: give the modules of the model in their order")
    found = []
    args, options = inputs, dict(kwargs or {})
    for index, layer in enumerate(layers):
        is_last = index == len(layers) - 1
        if report is not None:
            report(f"layer {index + 1} of {len(layers)}")
        loss = loss_fn if is_last else None
        graphs = trace(layer, args, options, loss_fn=loss, target=target if loss else None)
        if graphs.backward is None:
            raise CostError(
                f"layer {index} has nothing to train and no gradient to hand back: make it one with the next layer"
            )
        given = {"target": target} if loss else {}
        values = {**graphs.bind(layer), **graphs.bind_inputs(*args, **options, **given)}
        times, values = _times(graphs, values, group, repeat)
        found.append(times)
        handed_on = None if loss else graphs.result(values)
        args, options = handed_on if isinstance(handed_on, tuple) else (handed_on,), {}
        args = tree_map_only(torch.Tensor, _as_input, args)
    return found


def _as_input(value: torch.Tensor) -> torch.Tensor:
    return value.detach().requires_grad_(value.is_floating_point())


def _times(
    graphs: StageGraphs, values: dict[str, Any], group: dist.ProcessGroup | None, repeat: int
) -> tuple[LayerTimes, dict[str, Any]]:
    """The layer's numbers, and its values with those of its outputs."""
    outputs = {
        port.source or port.name: port.name for port in graphs.forward.outputs if port.role in ("output", "loss")
    }
    parts: dict[str, tuple[float, float]] = {}
    for kind in ("F", "I", "W"):
        graph = graphs.of_kind(kind)
        if graph is None:
            parts[kind] = (0.0, 0.0)
            continue
        values |= {
            port.name: torch.ones_like(values[outputs[port.source]]) for port in graph.inputs if port.role == "tangent"
        }
        parts[kind] = _sums(measure(graph, values, group, repeat=repeat))
        values |= graph(values)
    stored = stored_bytes(graphs)
    comm = (parts["F"][1] + parts["I"][1] + parts["W"][1]) / 2
    forward, to_input, to_weights = (parts[kind][0] for kind in ("F", "I", "W"))
    return LayerTimes(forward, to_input, to_weights, comm, stored.activation, stored.parameters, stored.output), values


def _sums(costs: NodeCosts) -> tuple[float, float]:
    """Seconds on the issuing thread, and of transfers."""
    moved = sum(seconds for key, seconds in costs.seconds.items() if key in costs.issue)
    return sum(costs.seconds.values()) - moved + sum(costs.issue.values()), moved
