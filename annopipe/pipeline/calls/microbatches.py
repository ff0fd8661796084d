"""Split a batch into microbatches."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET

__all__ = ["BatchDims", "dim_of", "positional_names", "split_batch"]

# The dimension that is cut, by argument; None where every microbatch gets the whole.
BatchDims = Mapping[str, int | None]


def split_batch(
    named: Mapping[str, Any], microbatches: int, dims: BatchDims, lengths: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """Arguments by name, with every tensor cut into equal parts along its batch dimension; the rest is repeated.

    Args:
        named: nested containers.
        dims: by the path of an argument or of a container in it; the first dimension is cut where none is given.
        lengths: of the batch in what was cut before, by path; what is cut here is added.

    Raises PipelineError for a tensor that cannot be cut so, or whose batch is not as long as the others'.

    >>> split_batch({"x": torch.arange(4), "scale": 2, "offsets": torch.arange(3)}, 2, {"offsets": None})[1]
    {'x': tensor([2, 3]), 'scale': 2, 'offsets': tensor([0, 1, 2])}
    """
    parts: list[dict[str, Any]] = [{} for _ in range(microbatches)]
    lengths = {} if lengths is None else lengths
    for name, value in named.items():
        leaves, spec = pytrees.tree_flatten(value)
        paths = pytrees.leaf_paths(value, name)
        pieces = [_pieces(path, leaf, microbatches, dims, lengths) for path, leaf in zip(paths, leaves, strict=True)]
        for index, part in enumerate(parts):
            part[name] = pytrees.tree_unflatten([piece[index] for piece in pieces], spec)
    return parts


def _pieces(path: str, leaf: Any, microbatches: int, dims: BatchDims, lengths: dict[str, int]) -> Sequence[Any]:
    dim = dim_of(path, dims)
    if dim is None or microbatches == 1 or not isinstance(leaf, torch.Tensor):
        return [leaf] * microbatches
    advice = (
        f"batch_dims={{{path!r}: None}} of Pipeline gives it to every microbatch whole, step_microbatches takes parts"
    )
    if not -leaf.dim() <= dim < leaf.dim() or leaf.shape[dim] % microbatches:
        raise PipelineError(
            f"{path} has shape {tuple(leaf.shape)}, and its dimension {dim} cannot be cut into {microbatches} equal "
            f"microbatches; {advice}"
        )
    own = leaf.shape[dim]
    for other, length in lengths.items():
        if own % max(1, length) if path.partition(".")[0] == TARGET else own != length:
            raise PipelineError(
                f"{path} is {own} long in dimension {dim}, and {other} has a batch of {length}; {advice}"
            )
    lengths.setdefault(path, own)
    return leaf.chunk(microbatches, dim) if own else [leaf] * microbatches


def dim_of(path: str, dims: BatchDims) -> int | None:
    """The dimension of the batch in an argument: that of the longest beginning of its path.

    >>> dim_of("state.mask", {"state": 1}), dim_of("x", {"state": 1})
    (1, 0)
    """
    names = path.split(".")
    for end in range(len(names), 0, -1):
        if (found := ".".join(names[:end])) in dims:
            return dims[found]
    return 0


def positional_names(module: nn.Module, count: int) -> list[str]:
    """What the first arguments of the module's forward are called: "x", "rest.0"; "arguments.3" where it has no more.

    >>> positional_names(nn.Linear(2, 2), 2)
    ['input', 'arguments.1']
    """
    names: list[str] = []
    more = "arguments"
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            more = parameter.name
            break
    first = 0 if more == "arguments" else len(names)
    return [names[at] if at < len(names) else f"{more}.{at - first}" for at in range(count)]
