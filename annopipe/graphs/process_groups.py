"""Adapter: from the name of a process group, as graphs carry it, to the group (private in torch.distributed)."""

from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

__all__ = ["find_group", "group_by_name", "is_distributed"]


def group_by_name(name: str) -> dist.ProcessGroup:
    """The process group that functional collectives know by ``name``; Dynamo takes it as a constant."""
    return cast(dist.ProcessGroup, _looked_up(name))


def find_group(name: str) -> dist.ProcessGroup | None:
    """The process group of that name; None if this process has none."""
    if not is_distributed():
        return None
    try:
        return group_by_name(name)
    except (RuntimeError, ValueError):  # how torch says that there is none
        return None


@torch.compiler.assume_constant_result
def _looked_up(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(name)  # type: ignore[arg-type]


def is_distributed() -> bool:
    """Whether torch.distributed is there and initialised."""
    return dist.is_available() and dist.is_initialized()
