"""Small messages between the ranks that plan together."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from annopipe.errors import OrderError
from annopipe.graphs.process_groups import group_by_name

__all__ = ["CHECK_TIMEOUT", "gather", "gather_digests", "message_device"]

CHECK_TIMEOUT = timedelta(seconds=60)


def gather(item: Any, group: dist.ProcessGroup) -> list[Any]:
    """One item of each rank of the group, on all of them."""
    results: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(results, item, group=group)
    return results


def gather_digests(tokens: Sequence[str], queue: str) -> list[tuple[int, str]]:
    """Number and digest of each rank's tokens; with a time limit, since a rank without collectives does not come."""
    group = group_by_name(queue)
    device = message_device(group)
    digest = int(hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:15], 16)
    mine = torch.tensor([len(tokens), digest], device=device)
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(everyone, mine, group=group, async_op=True)
    try:
        if work is not None:
            work.wait(CHECK_TIMEOUT)
    except RuntimeError as error:
        raise OrderError(
            f"not all ranks of process group {queue} compared their sequence of collectives within "
            f"{CHECK_TIMEOUT.seconds} s: one of them runs another plan, or none ({error})"
        ) from error
    return [(int(count), f"{int(value):015x}"[:8]) for count, value in everyone]


def message_device(group: dist.ProcessGroup) -> torch.device:
    """Where the group takes tensors from: the CPU, unless it has a backend for others only, such as NCCL."""
    devices = [part.partition(":")[0] for part in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in devices else devices[0])
