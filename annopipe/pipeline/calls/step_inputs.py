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

__all__ = ["StepInputs", "values_of"]


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
        self._values = {index: _graph_values(stages[index].graphs, found) for index, found in given.items()}
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


def values_of(
    graphs: StageGraphs, calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any], Any]], *, is_source: bool
) -> list[dict[str, Any]]:
    """Values by input port of all calls of a step; they have one structure and the same constants (``key_of_calls``).

    So only the first is matched with the traced call: in the others, tensors are where they were in the first one.

    Args:
        graphs: of the stage.
        calls: positional and keyword arguments, and the target.
        is_source: whether the positional arguments are the stage's.

    Raises PipelineError or CaptureError for a value that is not as it was when the stage was traced.
    """

    def named(call: tuple[tuple[Any, ...], Mapping[str, Any], Any]) -> dict[str, Any]:
        args, kwargs, target = call
        return _call_values(graphs, args, kwargs, target) if is_source else _later_values(graphs, kwargs, target)

    first = named(calls[0])
    places: dict[int, int] = {}
    leaves = _leaves(calls[0])
    for place, leaf in enumerate(leaves):
        places.setdefault(id(leaf), place)
    found = {name: places.get(id(value)) for name, value in first.items()}
    at = {name: place for name, place in found.items() if place is not None}
    kinds = [_kind(leaf) for leaf in leaves]
    others = [_leaves(call) for call in calls[1:]]
    # A tensor that comes twice, or from a default; guards on arguments, and kinds of tensors: no key tells of them.
    if (
        graphs.sources.guards
        or len(at) < len(first)
        or len(places) < len(leaves)
        or any([_kind(leaf) for leaf in other] != kinds for other in others)
    ):
        return [first, *map(named, calls[1:])]
    return [first, *({name: tensors[place] for name, place in at.items()} for tensors in others)]


def _call_values(graphs: StageGraphs, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Values by input port of a call of the first stage."""
    targets = {TARGET: target} if graphs.layout.has_loss else {}
    return graphs.bind_inputs(*args, **kwargs, **targets)


def _later_values(graphs: StageGraphs, kwargs: Mapping[str, Any], target: Any) -> dict[str, Any]:
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


def _leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested arguments, in an order that the structure decides; quick for the usual containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    kind = type(value)
    if kind is tuple or kind is list:
        return [leaf for each in value for leaf in _leaves(each)]
    if kind is dict:
        return [leaf for each in value.values() for leaf in _leaves(each)]
    return [leaf for leaf in pytrees.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _kind(value: torch.Tensor) -> tuple[Any, ...]:
    return type(value), value.layout, value.device


def _by_parameter(graphs: StageGraphs, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as forward has them: those without a parameter of their own together, under that of ``**``."""
    parameters = graphs.arguments.signature.parameters
    rest = [name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD]
    named = {name: value for name, value in kwargs.items() if name in parameters and name not in rest}
    return {**named, **{name: {k: v for k, v in kwargs.items() if k not in named} for name in rest}}


def _graph_values(graphs: StageGraphs, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The values of each call without history, in the memory format that the stage was traced with."""
    ports = {port.name: port for port in graphs.forward.inputs}
    return [
        {name: ports[name].laid_out(value.detach()) for name, value in values.items() if name in ports}
        for values in calls
    ]
