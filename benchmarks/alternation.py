"""Compare steps on several ranks: all of them in turn, round after round, so that a disturbance meets all alike."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

__all__ = ["Times", "alternated", "in_real_time", "raise_priority", "raise_to_real_time"]

K = TypeVar("K")


class Times(NamedTuple):
    """Seconds of one step: of the slowest rank, and of the processor on the rank that used most (all its threads)."""

    clock_s: float
    processor_s: float


def raise_priority(by: int) -> None:
    """As root, let other programs on the machine disturb a measurement less; threads that start later inherit it."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -by)


def raise_to_real_time() -> None:
    """As root on Linux, run before all ordinary programs, with all threads: for ranks that mostly wait, to end in time.

    Not for ranks that compute without a pause: these would keep the threads that carry their messages from running.
    """
    if hasattr(os, "sched_setscheduler"):
        _schedule(os.SCHED_RR, 1)


@contextlib.contextmanager
def in_real_time() -> Iterator[None]:
    """The same inside the block: as before behind it, so that what computes there does not hold up the machine."""
    raise_to_real_time()
    try:
        yield
    finally:
        if hasattr(os, "sched_setscheduler"):
            _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(PermissionError, ProcessLookupError):  # it has ended since
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def alternated(
    steps: Mapping[K, Callable[[], Any]], rounds: int, *, warm_up: int = 1
) -> Iterator[tuple[int, K, Times]]:
    """Number of the round, name and times of every step after it has run; rounds that warm up have numbers below 0.

    All ranks start a step together, and have to ask for the next one.
    """
    gc.freeze()  # the graphs stay; a full collection over them would fall into a measurement
    try:
        for number in range(-warm_up, rounds):
            for key, step in steps.items():
                yield number, key, _timed(step)
    finally:
        gc.unfreeze()


def _timed(step: Callable[[], Any]) -> Times:
    dist.barrier()
    used, started = time.process_time(), time.perf_counter()
    step()
    seconds = torch.tensor([time.perf_counter() - started, time.process_time() - used], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return Times(seconds[0].item(), seconds[1].item())
