"""What ``shard`` cannot do: options that are none, and modules whose parameters cannot be shared."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from annopipe.errors import PipelineError

__all__ = ["refuse_module", "refuse_options"]


def refuse_module(module: nn.Module, name: str) -> None:
    """Raises PipelineError for a module whose own parameters ``shard`` cannot share.

    >>> refuse_module(nn.Linear(1, 1), "head")
    """
    told = ""
    if isinstance(module, nn.RNNBase):
        told = "which keeps its weights in a list of its own"
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.sparse:
            told = "whose gradient is sparse (sparse=True), and ranks add up dense ones"
        elif module.max_norm is not None:
            told = "which changes its weight in its forward (max_norm=), and that would be lost with the gathered one"
    if told:
        raise PipelineError(
            f"shard: {name or 'the module'} is of class {type(module).__name__}, {told}: leave it alone with "
            f"ignore=[{name!r}]"
        )


def refuse_options(mesh: object, dtypes: Iterable[object], divide_by: object, ignore: object) -> None:
    """Raises PipelineError for options of another kind than ``shard`` takes."""
    if not isinstance(mesh, DeviceMesh):
        raise PipelineError(
            f"shard: the mesh is a {type(mesh).__name__}: give a DeviceMesh, such as init_device_mesh makes, or "
            "DeviceMesh.from_group of a process group"
        )
    for dtype in dtypes:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise PipelineError(f"shard: {dtype!r} is no type to compute in: give a dtype, such as torch.bfloat16")
    if divide_by is not None and (isinstance(divide_by, bool) or not isinstance(divide_by, (int, float))):
        raise PipelineError(f"shard: divide_by={divide_by!r}: give a number")
    if divide_by is not None and not divide_by > 0:
        raise PipelineError(f"shard: divide_by={divide_by}: give a number above 0")
    if isinstance(ignore, str):
        raise PipelineError(f"shard: ignore={ignore!r} is one text: give a list of names")
