"""Times of runs on several ranks."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["longest", "timed"]


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds that ``run`` takes on this rank, the device's work included."""
    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronise()
    started = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - started


def longest(run: Callable[[], float], device: torch.device) -> float:
    """All ranks start together; the time of the slowest."""
    dist.barrier()
    seconds = torch.tensor([run()], dtype=torch.float64, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)
