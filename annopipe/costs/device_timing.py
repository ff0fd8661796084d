"""What a processor or a GPU attains, measured in a second: products of matrices, copies, tiny operations, host reads.

The best of a few repetitions each, since interruptions only ever add. What is measured is attained.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["Attained", "attained"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_SIDE = {"cpu": 384, "cuda": 8192}
_COPY_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
_REPEAT = 4
_CALLS = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Attained:
    """Of one device: FLOP/s by data type, bytes/s of its memory, seconds of a tiny operation and of a host read."""

    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    kernel_launch_s: float
    host_read_s: float


def attained(device: torch.device) -> Attained:
    """Measure a device; draws no random numbers.

    >>> attained(torch.device("cpu")).memory_bandwidth > 0
    True
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        size = _COPY_BYTES[device.type]
        source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
        target = torch.empty_like(source)
        one = torch.ones(1, device=device)
        copy_s = _best(lambda: target.copy_(source), device)
        return Attained(
            peak_flops={str(dtype).removeprefix("torch."): _product_flops(dtype, device) for dtype in _DTYPES},
            memory_bandwidth=2 * size / copy_s,
            kernel_launch_s=_best(lambda: one + one, device, _CALLS),
            host_read_s=_best(one.item, device, _CALLS),
        )


def _product_flops(dtype: torch.dtype, device: torch.device) -> float:
    side = _SIDE[device.type]
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    out = torch.empty_like(matrix)
    return 2 * side**3 / _best(lambda: torch.mm(matrix, matrix, out=out), device)


def _best(work: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Seconds per call, the best of a few rounds."""
    work()
    rounds = []
    for _ in range(_REPEAT):
        _finish(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        _finish(device)
        rounds.append((time.perf_counter() - start) / calls)
    return max(min(rounds), 1e-9)  # a clock that stands still must not make an infinite peak


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
