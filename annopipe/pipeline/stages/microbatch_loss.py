"""``loss_fn`` of microbatches whose last stage runs as nano-batches: between the lanes of F and those of B.

It is traced alone, and called with the outputs of the whole microbatch, put together, and the whole target. So no loss
has to be a sum over sequences; its gradient is cut up for the lanes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from annopipe.graphs.extraction import extract
from annopipe.graphs.ops import has_effect
from annopipe.graphs.stage_graph import body
from annopipe.graphs.stage_graphs import LOSS, StageGraphs
from annopipe.graphs.tracing import trace
from annopipe.pipeline.stages.boundary import Boundary
from annopipe.pipeline.stages.kept_values import KeptValues, Scales, Values

__all__ = ["LossGradients", "MicrobatchLoss", "traced_loss"]


@dataclasses.dataclass(frozen=True)
class LossGradients:
    """outputs: by output; targets: by input port of the target."""

    outputs: Mapping[str, torch.Tensor]
    targets: Mapping[str, torch.Tensor]


class MicrobatchLoss:
    """The loss of each microbatch, and what it leaves for its backward.

    Attributes:
        differentiated: the outputs of the stage that the loss has gradients for.

    Args:
        stage: whose outputs, for messages.
        graphs: from ``traced_loss``.
    """

    def __init__(self, stage: int, graphs: StageGraphs) -> None:
        self._kept = KeptValues(stage, graphs)
        self._inputs = {port.name: port for port in graphs.forward.inputs if port.role == "input"}
        own, gradients = set(graphs.arguments.paths), graphs.backward.outputs if graphs.backward is not None else ()
        named = [(port.name, port.source) for port in gradients if port.role == "input_grad"]
        self._of_outputs = {name: source for name, source in named if source in own}
        self._of_targets = {name: f"input.{source}" for name, source in named if source not in own}
        self.differentiated = frozenset(self._of_outputs.values())
        self._outputs = [(f"input.{path}", path) for path in graphs.arguments.paths]
        self._has_backward = graphs.backward is not None

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def kept(self, microbatch: int) -> list[Values]:
        """What a microbatch has left here, if there is any."""
        return [self._kept.of(microbatch)] if microbatch in self._kept.microbatches else []

    def start(self, microbatch: int, inputs: Mapping[str, Any]) -> None:
        """Take the target, from the inputs of a microbatch."""
        targets = {name: inputs[name] for name in self._inputs if name in inputs}
        self._kept.start_forward(microbatch, targets)

    def forward(self, microbatch: int, outputs: Mapping[str, Any]) -> torch.Tensor:
        """The loss of a microbatch whose outputs are there, by output."""
        values = self._kept.of(microbatch)
        for name, output in self._outputs:
            if name in self._inputs:
                values[name] = self._inputs[name].laid_out(outputs[output])
        result = self._kept.call("F", microbatch, {})
        self._kept.finish("F", microbatch, result)
        found: torch.Tensor = result[LOSS]
        return found

    def backward(self, microbatch: int, scales: Scales) -> LossGradients:
        """The gradients of a microbatch's outputs, and of its target where that has one."""
        if not self._has_backward:
            return LossGradients({}, {})
        self._kept.start_backward(microbatch, {}, scales)
        result = self._kept.call("B", microbatch, {})
        self._kept.finish("B", microbatch, result)
        outputs, targets = (
            {to: result[name] for name, to in names.items()} for names in (self._of_outputs, self._of_targets)
        )
        return LossGradients(outputs, targets)


def traced_loss(
    whole: Boundary, part: Boundary, loss_fn: Callable[[Any, Any], torch.Tensor], target: Any, device: torch.device
) -> StageGraphs:
    """The graphs of a loss alone.

    Args:
        whole, part: what the stage returns for a microbatch, and, traced without its loss, for a part of it.
        loss_fn: called with what the stage returns and the target.
        target: of one microbatch.
        device: of the stage.

    Raises CaptureError as ``trace``.
    """
    differentiable = [leaf.differentiable for leaf in part.tensors]
    examples = [leaf.example(device) for leaf in whole.tensors]
    given = [value.requires_grad_(asked) for value, asked in zip(examples, differentiable, strict=True)]
    graphs = trace(_Returned(), (whole.value_with(given),), None, loss_fn, target)
    forward = graphs.forward
    results = [port.name for port in forward.outputs if port.role != "output"]
    effects = [node for node in body(forward.graph) if has_effect(node)]
    return dataclasses.replace(graphs, forward=extract(forward, results, keep=effects))


class _Returned(nn.Module):
    """Stands for the stage: its outputs have the names of the stage's, and so have its inputs."""

    def forward(self, output: Any) -> Any:
        return output
