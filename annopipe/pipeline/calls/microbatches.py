"""Split a batch into microbatches, and give the tensors of a call the names of a stage's input ports."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET
from annopipe.graphs.snapshots import HoldsTensorError, snapshot
from annopipe.graphs.stage_graphs import StageGraphs

__all__ = [
    "BatchDims",
    "call_values",
    "constant_text",
    "graph_values",
    "later_values",
    "positional_names",
    "signature_text",
    "split_batch",
]

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
    dim = _dim_of(path, dims)
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


def _dim_of(path: str, dims: BatchDims) -> int | None:
    """That of the longest beginning of the path."""
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


def graph_values(graphs: StageGraphs, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without history, in the memory format that the stage was traced with."""
    ports = {port.name: port for port in graphs.forward.inputs}
    return {name: ports[name].laid_out(value.detach()) for name, value in values.items() if name in ports}


def signature_text(value: Any) -> str:
    """The structure, shapes, dtypes and constants of arguments, for messages."""
    leaves, spec = pytrees.tree_flatten(value)
    kinds = [
        f"{leaf.dtype}{tuple(leaf.shape)}{leaf.requires_grad}"
        if isinstance(leaf, torch.Tensor)
        else constant_text(leaf)
        for leaf in leaves
    ]
    return f"{spec} {kinds}"


def constant_text(leaf: Any) -> str:
    """A constant in full, as the guards of a graph compare it; arrays print the same when they differ in the middle."""
    try:
        return repr(leaf) if isinstance(leaf, (bool, int, float, str, type(None))) else repr(snapshot(leaf))
    except HoldsTensorError:
        return repr(leaf)  # tracing refuses it
