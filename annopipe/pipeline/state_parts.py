"""Parts of whole tensors in a checkpoint: as a rank gives them to it, and as it takes them back."""

import fnmatch
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from annopipe.errors import PipelineError
from annopipe.graphs.distributed_tensors import local_part

__all__ = ["as_whole", "own_part", "take"]


def as_whole(name: str, value: Any, sharded: Mapping[str, DeviceMesh]) -> Any:
    """A value as part of the whole, where it is one.

    Args:
        name: of the parameter that the value is, or is about.
        value: anything; a DTensor stays.
        sharded: by pattern of names, the mesh whose ranks hold equal parts along the first dimension.

    Raises PipelineError for a part that is itself spread over other ranks.
    """
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    mesh = next((mesh for pattern, mesh in sharded.items() if fnmatch.fnmatchcase(name, pattern)), None)
    if isinstance(value, DTensor) and mesh is not None and mesh.size() > 1 and mesh != value.device_mesh:
        raise PipelineError(
            f"{name} is spread over the ranks of {value.device_mesh} by ap.shard, and over those of sharded={mesh}, "
            "too: a checkpoint would keep the part of one of them; leave such parameters out of ap.shard (ignore=), or "
            "save them under names of their own"
        )
    if isinstance(value, DTensor):
        return value
    return value if mesh is None else DTensor.from_local(value, mesh, [Shard(0)], run_check=False)


def own_part(name: str, value: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """What a tensor of this rank, or its part of a DTensor, is to hold: the value, or this rank's part of it.

    Raises PipelineError for a value of another shape.

    >>> own_part("bias", torch.ones(3), torch.zeros(2))
    Traceback (most recent call last):
    annopipe.errors.PipelineError: the state has bias in the shape (3,), and this rank holds (2,) of it
    """
    if isinstance(held, DTensor) and value.shape == held.shape:
        mesh, placements = held.device_mesh, held.placements
        if not isinstance(value, DTensor):
            value = distribute_tensor(value.to(held.device), mesh, placements, src_data_rank=None)
        elif value.device_mesh == mesh:
            value = value.redistribute(placements=placements)
    found, own = local_part(value), local_part(held)
    if found.shape != own.shape:
        raise PipelineError(
            f"the state has {name} in the shape {tuple(value.shape)}, and this rank holds {tuple(own.shape)} of it"
        )
    return found


def take(name: str, value: Any, held: Any) -> Any:
    """Have a tensor of this rank hold a value of the state, or its part of it; anything else is the value.

    >>> take("bias", torch.ones(2), torch.zeros(2)), take("lr", 0.1, 0.2)
    (tensor([1., 1.]), 0.1)
    """
    if not (isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor)):
        return value
    with torch.no_grad():
        local_part(held).copy_(own_part(name, value, held))
    return held
