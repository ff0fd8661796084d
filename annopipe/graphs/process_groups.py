"""Adapter: from the name of a process group, as graphs carry it, to the group (private in torch.distributed)."""

from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

__all__ = ["find_group", "group_by_name", "host_timeout", "is_distributed"]


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


def host_timeout(group: dist.ProcessGroup) -> timedelta | None:
    """How long the host waits for an operation of the group; None if it has no backend for which the host waits."""
    devices = [part.partition(":")[0] for part in dist.get_backend_config(group).split(",")]
    if "cpu" not in devices:
        return None
    return group._get_backend(torch.device("cpu")).options._timeout


@torch.compiler.assume_constant_result
def _looked_up(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(name)  # type: ignore[arg-type]


def is_distributed() -> bool:
    """Whether torch.distributed is there and initialised."""
    return dist.is_available() and dist.is_initialized()
