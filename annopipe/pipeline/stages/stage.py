"""One stage on the rank that holds it: its module, its graphs, and what its microbatches have left there."""

import functools
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import nn

from annopipe.errors import PipelineError
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.stage_graphs import LOSS, StageGraphs
from annopipe.pipeline.calls.module_state import ModuleState
from annopipe.pipeline.stages.batch_loss import BatchLoss
from annopipe.pipeline.stages.graph_call import GraphCall
from annopipe.pipeline.stages.parameters import StageParameters

__all__ = ["LocalStage"]

Values = dict[str, Any]


class LocalStage:
    """A stage that this rank holds.

    Attributes:
        index: its number.
        module, graphs: what it is and what it was traced into.
        parameters: of the module, gathered where they are sharded, and their gradients.
        inputs: input port of each tensor that the stage before hands over, or of each argument's tensor.
        input_gradients: for each of these, the port of its gradient; None where there is none.
        losses: by name and microbatch: of ``loss_fn`` on the last stage, and auxiliary ones.
        outputs: what forward returned, by microbatch, where it is kept.
        handed: how many arguments the stages before hand over.
        keeps_outputs: whether what forward returns is kept.
        batch_loss: a loss over the outputs of all microbatches; None where there is none.
        outside_gradients: by microbatch and input port, for inputs that the step was called with.

    Args:
        inside: how many of the inputs the stages before hand over.
        handed, keeps_outputs: see above.
        fixed_sums: whether gradients are added up in the order of microbatches, whatever order they come in.
        first: the first microbatch that the stage sees.
    """

    def __init__(
        self,
        index: int,
        module: nn.Module,
        graphs: StageGraphs,
        *,
        inside: int = 0,
        handed: int = 0,
        keeps_outputs: bool = False,
        fixed_sums: bool = False,
        batch_loss: BatchLoss | None = None,
        first: int = 0,
    ) -> None:
        self.index, self.module, self.graphs = index, module, graphs
        self.inputs = [f"input.{path}" for path in graphs.arguments.paths]
        gradients = (
            {port.source: port.name for port in graphs.backward.outputs if port.role == "input_grad"}
            if graphs.backward
            else {}
        )
        self.input_gradients = [gradients.get(path) for path in graphs.arguments.paths]
        self.losses: dict[str, dict[int, torch.Tensor]] = {name: {} for name in graphs.layout.losses}
        self.outputs: dict[int, Any] = {}
        self.outside_gradients: dict[tuple[int, str], torch.Tensor] = {}
        self._outside = [
            (gradient, path)
            for gradient, path in zip(self.input_gradients[inside:], self.inputs[inside:], strict=True)
            if gradient is not None
        ]
        self.batch_loss, self.handed = batch_loss, handed
        self._outside += [(gradients[p], f"input.{p}") for p in graphs.target_arguments.paths if p in gradients]
        self.keeps_outputs, self._first = keeps_outputs, first
        self.parameters = StageParameters(graphs, fixed_sums=fixed_sums, first=first)
        self._kept: dict[int, Values] = {}
        self._updates = [(port.name, port.source) for port in graphs.forward.outputs if port.role == "buffer_update"]
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
    def has_backward(self) -> bool:
        """Whether anything in or before the stage is differentiated."""
        return self.graphs.backward is not None

    @property
    def in_flight(self) -> int:
        """How many microbatches have left values here."""
        return len(self._kept)

    def own_losses(self) -> Mapping[int, torch.Tensor]:
        """Of ``loss_fn``, by microbatch; a loss over the whole batch counts as that of the first one."""
        if self.batch_loss is not None and self.batch_loss.found is not None:
            return {self._first: self.batch_loss.found}
        return self.losses.get(LOSS, {})

    def begin_step(self, state: ModuleState) -> None:
        """Bind the module's parameters and buffers.

        Args:
            state: of the module now; its key is the one that the module was traced with.

        Raises CaptureError when a Python value that the module was traced with has changed.
        """
        self.graphs.sources.check({"self": self.module})
        self.parameters.begin_step(state.tensors)
        self._clear()

    def end_step(self) -> None:
        """Forget what the step has left here, and the module's own tensors."""
        self.parameters.end_step()
        self._clear()

    def _clear(self) -> None:
        for losses in self.losses.values():
            losses.clear()
        self._kept.clear()
        self.outputs.clear()
        self.outside_gradients.clear()
        if self.batch_loss is not None:
            self.batch_loss.begin()

    def call(self, kind: str, microbatch: int) -> Values:
        """Run the graph of one action on what is there for it."""
        found = self._calls.get(kind)
        if found is None:
            graph = self.graphs.of_kind(kind)
            if graph is None:
                raise PipelineError(f"stage {self.index} has no backward; this is a mistake in annopipe")
            found = self._calls[kind] = GraphCall(graph)
        return found(self.take(kind, microbatch))[0]

    def start_forward(self, microbatch: int, inputs: Mapping[str, Any]) -> None:
        """Take the inputs of a microbatch."""
        self._kept[microbatch] = {**self.parameters.bound, **inputs}

    def start_backward(
        self,
        microbatch: int,
        gradients: Mapping[str, torch.Tensor],
        scales: Mapping[str, float | torch.Tensor],
    ) -> None:
        """Take the gradients of a microbatch's outputs and losses; an output whose gradient nobody has gets zeros."""
        values = self._kept[microbatch]
        for port in self._tangents:
            found = gradients.get(port.source)
            if found is None:
                zeros = torch.zeros([int(e) for e in port.shape], dtype=port.dtype, device=port.device)
                found = zeros.add_(scales[port.source]) if port.source in scales else zeros
            values[port.name] = found

    def take(self, kind: str, microbatch: int) -> Values:
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
        return {**values, **gathered} if (gathered := self.parameters.unshard()) else values

    def kept(self, microbatch: int) -> Mapping[str, Any]:
        """What a microbatch has left here for later graphs, by port name."""
        return self._kept[microbatch]

    def map_saved(self, microbatch: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put what a function makes of each tensor in the place of what a microbatch has saved here.

        Raises PipelineError for a microbatch that has saved nothing.
        """
        if microbatch not in self._kept:
            raise PipelineError(f"stage {self.index} keeps nothing of microbatch {microbatch} now")
        kept = self._kept[microbatch]
        changed: dict[int, torch.Tensor] = {}  # one tensor may be saved under several names
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and name not in self.parameters.bound:
                if id(value) not in changed:
                    changed[id(value)] = change(value)
                kept[name] = changed[id(value)]

    def finish(self, kind: str, microbatch: int, result: Values) -> None:
        """Keep of a result what later graphs take, and add up gradients."""
        if kind == "F":
            self._finish_forward(microbatch, result)
            return
        self.parameters.accumulate(microbatch, result)
        for gradient, path in self._outside:
            if gradient in result:
                self.outside_gradients[microbatch, path] = result[gradient]
        if kind == "I":
            self._keep(microbatch, result, self._for_weight)
        else:
            del self._kept[microbatch]

    def _finish_forward(self, microbatch: int, result: Values) -> None:
        for name, source in self._updates:
            self.parameters.write_buffer(source, result[name])
        for name, found in self.losses.items():
            found[microbatch] = result[name]
        if self.keeps_outputs:
            self.outputs[microbatch] = self.graphs.result(result)
        if self.batch_loss is not None:
            self.batch_loss.keep(microbatch, result)
        if self.has_backward:
            self._keep(microbatch, result, self._for_backward)
        else:
            del self._kept[microbatch]

    def _keep(self, microbatch: int, result: Values, names: AbstractSet[str]) -> None:
        self._kept[microbatch].update({name: value for name, value in result.items() if name in names})


def _taken_by(graph: StageGraph | None) -> frozenset[str]:
    return frozenset(port.name for port in graph.inputs) if graph is not None else frozenset()
