"""What one step is called with, as its stages take it, and the gradients that go back to the caller."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.pipeline.stages.batch_loss import Scale
from annopipe.pipeline.stages.stage import LocalStage

__all__ = ["StepInputs", "call_values", "later_values"]


class StepInputs:
    """The values of a step by stage, microbatch and input port.

    Args:
        stages: of this rank.
        given: by stage, for each microbatch what the step was called with, by input port.
        scales: what each loss is multiplied with before it is differentiated, by its name.
        targets: of the loss, for each microbatch; None where this rank has none.
    """

    def __init__(
        self,
        stages: Mapping[int, LocalStage],
        given: Mapping[int, Sequence[Mapping[str, torch.Tensor]]],
        scales: Mapping[str, Scale],
        targets: Sequence[Any] = (),
    ) -> None:
        self.scales, self.targets = scales, targets
        self._values = {
            index: [_graph_values(stages[index].graphs, values) for values in found] for index, found in given.items()
        }
        self._differentiated = {
            (index, microbatch, name): value
            for index, found in given.items()
            for microbatch, values in enumerate(found)
            for name, value in values.items()
            if value.requires_grad
        }

    def of(self, stage: int, microbatch: int) -> Mapping[str, Any]:
        """Values of one microbatch of a stage, but for what the stage before hands over."""
        return self._values[stage][microbatch]

    def backward(self, stages: Mapping[int, LocalStage]) -> None:
        """Give the caller's tensors their gradients, and what the caller computed them from."""
        tensors, gradients = [], []
        for (index, microbatch, name), value in self._differentiated.items():
            gradient = stages[index].outside_gradients.get((microbatch, name))
            if gradient is not None:
                tensors.append(value)
                gradients.append(gradient)
        if tensors:
            torch.autograd.backward(tensors, gradients)


def call_values(graphs: StageGraphs, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Values by input port of a call of the first stage."""
    targets = {TARGET: target} if graphs.layout.has_loss else {}
    return graphs.bind_inputs(*args, **kwargs, **targets)


def later_values(graphs: StageGraphs, kwargs: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Values by input port of what a later stage is called with besides what the stage before hands on.

    Raises PipelineError or CaptureError for a value that is not as it was when the stage was traced.
    """
    named = {**_by_parameter(graphs, kwargs), **({TARGET: target} if graphs.layout.has_loss else {})}
    ports = {port.name: port for port in graphs.forward.inputs}
    constants = {guard.path: guard for guard in (*graphs.arguments.guards, *graphs.target_arguments.guards)}
    values: dict[str, Any] = {}
    for name, value in named.items():
        for path, leaf in zip(pytrees.leaf_paths(value, name), pytrees.tree_leaves(value), strict=True):
            port = ports.get(f"input.{path}")
            if path in constants:
                constants[path].check(leaf)
            elif port is not None:
                reason = port.mismatch(leaf)
                if reason:
                    raise PipelineError(f"{path}: {reason}; every microbatch of a step has the same shapes")
                values[port.name] = leaf
    return values


def _by_parameter(graphs: StageGraphs, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as forward has them: those without a parameter of their own together, under that of ``**``."""
    parameters = graphs.arguments.signature.parameters
    rest = [name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD]
    named = {name: value for name, value in kwargs.items() if name in parameters and name not in rest}
    return {**named, **{name: {k: v for k, v in kwargs.items() if k not in named} for name in rest}}


def _graph_values(graphs: StageGraphs, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without history, in the memory format that the stage was traced with."""
    ports = {port.name: port for port in graphs.forward.inputs}
    return {name: ports[name].laid_out(value.detach()) for name, value in values.items() if name in ports}
