"""How much communication and computation slow each other down, measured on the ranks of a process group.

    found = ap.costs.measure_interference(dist.group.WORLD)       # all ranks of the group call it
    costs = ap.costs.roofline(graph, "h100", network=found.network())

An all-to-all is started, and small pieces of computation run until it is over. How many ran in that time, against how
long one takes when nothing moves, is what computation loses; how long the all-to-all took, against its time alone, is
what the transfer loses. Once with matrix products and once with copies of memory, since a transfer takes processor
time from the first and bandwidth of the memory from the second.
"""

import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from annopipe.errors import CostError
from annopipe.graphs.process_groups import is_distributed
from annopipe.simulation import Network

__all__ = ["Interference", "measure_interference"]

_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 28
_SHORTEST_S = 0.03  # a transfer has to cover many pieces of computation
_PIECE_SIDE, _PIECE_BYTES = 192, 2 << 20  # a piece takes well below a millisecond
_MEMORY_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Interference:
    """How much longer things take together than alone, as a share of their time alone: 0.16 is 16% longer.

    matmul, memory: matrix products, and copies of memory, while a transfer moves: the mean of the ranks.
    transfer_beside_matmul, transfer_beside_memory: the transfer, while its ranks compute: the slowest rank's.
    ranks: size of the group.  transfer_bytes: what each rank sent.

    >>> Interference(0.1, 0.3, 0.0, 0.0, ranks=2, transfer_bytes=1 << 20).network(memory_share=0.5)
    Network(in_flight=1, shared_link=True, interference=0.2)
    """

    matmul: float
    memory: float
    transfer_beside_matmul: float
    transfer_beside_memory: float
    ranks: int
    transfer_bytes: int

    def network(self, base: Network | None = None, *, memory_share: float = 0.0) -> Network:
        """A network on which computation is slowed down as measured: what ``NodeCosts.network`` takes.

        Args:
            base: the network's other properties.
            memory_share: the share of the computation's time that is bound by memory rather than by products.

        Raises:
            CostError: the share is not between 0 and 1.
        """
        if not 0.0 <= memory_share <= 1.0:
            raise CostError(f"memory_share is {memory_share!r}: give a share between 0 and 1")
        mixed = self.matmul * (1.0 - memory_share) + self.memory * memory_share
        return dataclasses.replace(base or Network(), interference=mixed)


def measure_interference(
    group: dist.ProcessGroup | None = None,
    *,
    repeat: int = 5,
    device: torch.device | str = "cpu",
) -> Interference:
    """Measure how much an all-to-all of ``group`` and computation slow each other down; the same result on all ranks.

    Takes a few seconds. The size of the transfer is chosen so that it lasts long enough to measure.

    Args:
        group: all its ranks call this at the same time; the default group when left out.
        repeat: rounds; their median counts.
        device: where the computation runs and the messages lie: "cpu" for gloo, "cuda" for NCCL.

    Raises:
        CostError: torch.distributed is not initialised, the group has one rank only, or ``repeat`` is not positive.
    """
    if not is_distributed():
        raise CostError("measure_interference needs torch.distributed: call init_process_group on all ranks first")
    group = group or dist.group.WORLD
    ranks = dist.get_world_size(group)
    if ranks < 2 or repeat < 1:
        raise CostError(
            f"measure_interference on a group of {ranks}, repeat={repeat}: a transfer needs 2 ranks or more, and a "
            "measurement 1 round or more"
        )
    place = torch.device(device)
    bench = _Bench(group, ranks, place)
    beside = {name: bench.together(piece, repeat) for name, piece in _pieces(place).items()}
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, beside, group=group)

    def computation(name: str) -> float:
        return max(0.0, statistics.fmean(one[name][0] for one in found))

    def transfer(name: str) -> float:
        return max(0.0, *(one[name][1] for one in found))

    return Interference(
        matmul=computation("matmul"),
        memory=computation("memory"),
        transfer_beside_matmul=transfer("matmul"),
        transfer_beside_memory=transfer("memory"),
        ranks=ranks,
        transfer_bytes=bench.size_bytes,
    )


class _Bench:
    """An all-to-all that is long enough to measure, and what it does to pieces of computation."""

    def __init__(self, group: dist.ProcessGroup | None, ranks: int, device: torch.device) -> None:
        self._group, self._ranks, self._device = group, ranks, device
        self.size_bytes = _FIRST_BYTES
        self._allocate()
        while self._agreed(self.alone()) < _SHORTEST_S and self.size_bytes < _MOST_BYTES:
            self.size_bytes *= 2
            self._allocate()

    def alone(self) -> float:
        """Seconds of the transfer with nothing beside it."""
        self._meet()
        start = time.perf_counter()
        self._start().wait()
        self._finish()
        return time.perf_counter() - start

    def together(self, piece: Callable[[], object], repeat: int) -> tuple[float, float]:
        """By how much computation, and the transfer, take longer, each as a share of its time alone."""
        rounds = []
        for number in range(repeat + 1):  # the first one warms up
            piece_s, transfer_s = self._piece_seconds(piece), self.alone()
            count, elapsed = self._both(piece)
            if number:
                rounds.append((elapsed / count / piece_s - 1.0, elapsed / transfer_s - 1.0))
        of_pieces, of_transfers = zip(*rounds, strict=True)
        return statistics.median(of_pieces), statistics.median(of_transfers)

    def _both(self, piece: Callable[[], object]) -> tuple[int, float]:
        """How many pieces ran until the transfer was over, and how long that was."""
        self._meet()
        start = time.perf_counter()
        work = self._start()
        count = 0
        while count == 0 or not work.is_completed():
            piece()
            self._finish()
            count += 1
        elapsed = time.perf_counter() - start
        work.wait()
        return count, elapsed

    def _piece_seconds(self, piece: Callable[[], object]) -> float:
        self._meet()  # all ranks compute at the same time, as they do beside the transfer
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < _SHORTEST_S:
            piece()
            self._finish()
            count += 1
        return (time.perf_counter() - start) / count

    def _allocate(self) -> None:
        elements = self.size_bytes // 4 // self._ranks * self._ranks
        self._sent = torch.ones(elements, device=self._device)
        self._received = torch.empty_like(self._sent)

    def _start(self) -> Any:
        return dist.all_to_all_single(self._received, self._sent, group=self._group, async_op=True)

    def _meet(self) -> None:
        dist.barrier(self._group)
        self._finish()

    def _finish(self) -> None:
        if self._device.type == "cuda":  # the stream that computes, not the transfer's
            torch.cuda.current_stream(self._device).synchronize()

    def _agreed(self, seconds: float) -> float:
        longest = torch.tensor([seconds], device=self._device)
        dist.all_reduce(longest, dist.ReduceOp.MAX, self._group)
        return float(longest.item())


def _pieces(device: torch.device) -> dict[str, Callable[[], object]]:
    matrix = torch.ones(_PIECE_SIDE, _PIECE_SIDE, device=device)
    product = torch.empty_like(matrix)
    source = torch.ones(_MEMORY_BYTES // 4, device=device)
    parts = list(zip(torch.empty_like(source).split(_PIECE_BYTES // 4), source.split(_PIECE_BYTES // 4), strict=True))
    turns = itertools.cycle(parts)  # one after the other, so that caches do not hold them

    def copy() -> None:
        target, part = next(turns)
        target.copy_(part)

    return {"matmul": functools.partial(torch.mm, matrix, matrix, out=product), "memory": copy}
