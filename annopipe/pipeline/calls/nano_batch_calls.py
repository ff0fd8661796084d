"""The call of one microbatch, cut into those of its nano-batches."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.pipeline.calls.microbatch_calls import Call
from annopipe.pipeline.calls.microbatches import BatchDims, dim_of, positional_names

__all__ = ["batch_length", "nano_batch_call", "nano_batch_lengths"]


def nano_batch_lengths(length: int, parts: int) -> tuple[int, ...]:
    """How many sequences each nano-batch has, the longer ones first, as ``torch.tensor_split`` cuts.

    >>> nano_batch_lengths(7, 2), nano_batch_lengths(5, 3)
    ((4, 3), (2, 2, 1))
    """
    size, longer = divmod(length, parts)
    return tuple(size + (index < longer) for index in range(parts))


def batch_length(call: Call, first: nn.Module | None, dims: BatchDims) -> int | None:
    """How many sequences a microbatch has, as far as this rank can tell; None where it is called with no tensor.

    Args:
        call: of the microbatch.
        first: the first stage; None where it is on another rank.
        dims: the dimension of the batch, by path.

    Raises PipelineError where tensors do not agree.

    >>> batch_length(Call((), {"mask": torch.ones(4, 2), "scale": torch.ones(2)}, None), None, {"scale": None})
    4
    """
    found: dict[str, int] = {}
    for name, value in _inputs(call, first).items():
        for path, leaf in zip(pytrees.leaf_paths(value, name), pytrees.tree_leaves(value), strict=True):
            if (dim := dim_of(path, dims)) is None or not isinstance(leaf, torch.Tensor):
                continue
            known = leaf.shape[dim] if -leaf.dim() <= dim < leaf.dim() else None
            other = next(iter(found.items()), None)
            if known is None or (other is not None and other[1] != known):
                beside = f", and {other[0]} has a batch of {other[1]}" if other is not None else ""
                raise PipelineError(
                    f"{path} has shape {tuple(leaf.shape)} for a microbatch{beside}, so that it cannot be cut into "
                    f"nano-batches along its dimension {dim}; batch_dims={{{path!r}: None}} of Pipeline gives it to "
                    "each whole"
                )
            found[path] = known
    return next(iter(found.values()), None)


def nano_batch_call(call: Call, first: nn.Module | None, dims: BatchDims, start: int, length: int) -> Call:
    """The call of one nano-batch, without target.

    Args:
        call, first, dims: as for ``batch_length``.
        start, length: where it begins in the microbatch, and how many sequences it has.

    >>> nano_batch_call(Call((), {"x": torch.arange(5)}, None), None, {}, 3, 2).kwargs
    {'x': tensor([3, 4])}
    """
    named = {name: _cut(name, value, dims, start, length) for name, value in _inputs(call, first).items()}
    positional = list(named.values())[: len(call.args)] if first is not None else []
    kwargs = {name: named[name] for name in call.kwargs}
    return dataclasses.replace(call, args=tuple(positional), kwargs=kwargs, target=None, lengths={})


def _inputs(call: Call, first: nn.Module | None) -> dict[str, Any]:
    names = positional_names(first, len(call.args)) if first is not None else []
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def _cut(name: str, value: Any, dims: Mapping[str, int | None], start: int, length: int) -> Any:
    leaves, spec = pytrees.tree_flatten(value)
    cut: Sequence[Any] = [
        leaf.narrow(dim, start, length)
        if isinstance(leaf, torch.Tensor) and (dim := dim_of(path, dims)) is not None
        else leaf
        for path, leaf in zip(pytrees.leaf_paths(value, name), leaves, strict=True)
    ]
    return pytrees.tree_unflatten(list(cut), spec)
