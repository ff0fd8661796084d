"""Adapter: from the name of a process group, as graphs carry it, to the group (private in torch.distributed)."""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

__all__ = ["group_by_name", "is_distributed"]


@torch.compiler.assume_constant_result  # it is looked up while a model is captured, too
def group_by_name(name: str) -> dist.ProcessGroup:
    """The process group that functional collectives know by ``name``."""
    return _resolve_process_group(name)  # type: ignore[arg-type]


def is_distributed() -> bool:
    """Whether torch.distributed is there and initialised."""
    return dist.is_available() and dist.is_initialized()
