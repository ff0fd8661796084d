"""What microbatches leave for later graphs of one stage: the values of one set of graphs, by microbatch."""

import functools
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from annopipe.errors import PipelineError
from annopipe.graphs.host_copies import with_host_copies
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.ordering.streams import on_tagged_streams
from annopipe.pipeline.stages.graph_call import GraphCall

__all__ = ["KeptValues", "Scales", "Values"]

Values = dict[str, Any]
Scales = Mapping[str, float | torch.Tensor]


class KeptValues:
    """The values that graphs of a stage leave for its later ones; nothing stays that no later one takes.

    Args:
        stage: its number, for messages.
        graphs: of the whole stage, or of one of its nano-batches.
    """

    def __init__(self, stage: int, graphs: StageGraphs) -> None:
        self._stage, self.graphs = stage, graphs
        self._kept: dict[int, Values] = {}
        self._for_backward = _taken_by(graphs.backward)
        gathered = {port.name for port in graphs.unshard.outputs} if graphs.unshard is not None else set()
        self._stays_after_forward = sorted(self._for_backward & _taken_by(graphs.forward) - gathered)
        self._tangents = [port for port in graphs.backward.inputs if port.role == "tangent"] if graphs.backward else []
        self._calls: dict[str, GraphCall] = {}

    @functools.cached_property
    def _for_weight(self) -> frozenset[str]:
        """What W takes; a schedule that never splits a backward never asks."""
        return _taken_by(self.graphs.backward_weight)

    @property
    def microbatches(self) -> Iterable[int]:
        """Those that have left values here."""
        return self._kept.keys()

    def of(self, microbatch: int) -> Values:
        """What a microbatch has left here, by port name."""
        return self._kept[microbatch]

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def call(self, kind: str, microbatch: int, gathered: Values) -> Values:
        """Run the graph of one action on what is there for it."""
        found = self._calls.get(kind)
        if found is None:
            graph = self.graphs.of_kind(kind)
            if graph is None:
                raise PipelineError(f"stage {self._stage} has no backward; this is a mistake in annopipe")
            found = self._calls[kind] = GraphCall(with_host_copies(on_tagged_streams(graph)))
        return found(self.take(kind, microbatch, gathered))[0]

    def run_as(self, kind: str, graph: StageGraph) -> None:
        """Run another form of the graph of an action from now on: compiled, captured, or both."""
        self._calls[kind] = GraphCall(with_host_copies(graph))

    def start_forward(self, microbatch: int, values: Values) -> None:
        """Take the parameters and inputs of a microbatch."""
        self._kept[microbatch] = values

    def start_backward(self, microbatch: int, gradients: Mapping[str, torch.Tensor], scales: Scales) -> None:
        """Take the gradients of a microbatch's outputs and losses; an output whose gradient nobody has gets zeros."""
        values = self._kept[microbatch]
        for port in self._tangents:
            found = gradients.get(port.source)
            if found is None:
                zeros = torch.zeros([int(e) for e in port.shape], dtype=port.dtype, device=port.device)
                found = zeros.add_(scales[port.source]) if port.source in scales else zeros
            values[port.name] = found

    def take(self, kind: str, microbatch: int, gathered: Values) -> Values:
        """What is there for the graph of an action, by port name, with the stage's gathered parameters.

        What no later one takes is not kept here any more.
        """
        values = self._kept[microbatch]
        later: Values = {}
        if kind == "F":
            later = {name: values[name] for name in self._stays_after_forward}
        elif kind == "I":
            later = {name: value for name, value in values.items() if name in self._for_weight}
        self._kept[microbatch] = later
        return {**values, **gathered} if gathered else values

    def finish(self, kind: str, microbatch: int, result: Values) -> None:
        """Keep of a result what later graphs take."""
        if kind == "F" and self.graphs.backward is not None:
            self._keep(microbatch, result, self._for_backward)
        elif kind == "I":
            self._keep(microbatch, result, self._for_weight)
        else:
            del self._kept[microbatch]

    def _keep(self, microbatch: int, result: Values, names: AbstractSet[str]) -> None:
        self._kept[microbatch].update({name: value for name, value in result.items() if name in names})


def _taken_by(graph: StageGraph | None) -> frozenset[str]:
    return frozenset(port.name for port in graph.inputs) if graph is not None else frozenset()
