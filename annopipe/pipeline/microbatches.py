"""Split a batch into microbatches, and give the tensors of a call the names of a stage's input ports."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET
from annopipe.graphs.stage_graphs import StageGraphs

__all__ = ["call_values", "later_values", "signature_text", "split_batch"]


def split_batch(value: Any, microbatches: int, what: str) -> list[Any]:
    """A nested container with every tensor cut into equal parts along its first dimension; the rest is repeated.

    Raises PipelineError for a tensor that cannot be cut so.

    >>> split_batch({"x": torch.arange(4), "scale": 2}, 2, "inputs")
    [{'x': tensor([0, 1]), 'scale': 2}, {'x': tensor([2, 3]), 'scale': 2}]
    """
    leaves, spec = pytrees.tree_flatten(value)
    parts: list[list[Any]] = [[] for _ in range(microbatches)]
    for path, leaf in zip(pytrees.leaf_paths(value, what), leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            pieces: Sequence[Any] = [leaf] * microbatches
        elif leaf.dim() == 0 or leaf.shape[0] % microbatches:
            raise PipelineError(
                f"{path} has shape {tuple(leaf.shape)} and the schedule {microbatches} microbatches: its first "
                "dimension is the batch and is cut into equal parts; for anything else call step_microbatches"
            )
        else:
            pieces = leaf.chunk(microbatches)
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [pytrees.tree_unflatten(part, spec) for part in parts]


def call_values(graphs: StageGraphs, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Values by input port of a call of the first stage."""
    targets = {TARGET: target} if graphs.layout.has_loss else {}
    return _detached(graphs.bind_inputs(*args, **kwargs, **targets))


def later_values(graphs: StageGraphs, kwargs: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Values by input port of what a later stage is called with besides what the stage before hands on.

    Raises PipelineError or CaptureError for a value that is not as it was when the stage was traced.
    """
    named = {**kwargs, **({TARGET: target} if graphs.layout.has_loss else {})}
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
                values[port.name] = port.laid_out(leaf)
    return _detached(values)


def signature_text(value: Any) -> str:
    """What decides whether a prepared pipeline fits a call: structure, shapes, dtypes, and the values of constants."""
    leaves, spec = pytrees.tree_flatten(value)
    kinds = [
        f"{leaf.dtype}{tuple(leaf.shape)}{leaf.requires_grad}" if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves
    ]
    return f"{spec} {kinds}"


def _detached(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
