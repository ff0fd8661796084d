"""How long messages of many sizes take on the ranks of a process group, and the line through each kind's times.

All links of a kind work at the same time, as they do in a step. A size is timed several times in a row, because the
first bytes after a pause go through a limited network faster; medians, of the rank where they are longest. Sizes grow
until a message takes long enough, so that a fast and a slow network both take some seconds.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist

from annopipe.costs.fitting import Line, fitted
from annopipe.errors import CostError

__all__ = ["LARGEST_BYTES", "Kind", "MessageTimes", "Meter", "Route", "Where"]

Kind = Literal["send", "all_to_all", "all_gather"]
Where = Literal["inside", "between"]

LARGEST_BYTES = 1 << 26
_FIRST_BYTES, _GROWTH = 1 << 10, 4
_LONG_S = 0.04  # a message that takes so long is the last size
_FEWEST_SIZES = 4
_SIZE_S = 0.25  # what all rounds of one size may take, about
_IN_A_ROW = 4
_AT_ONCE = 4
_ROUNDS = (3, 15)


@dataclasses.dataclass(frozen=True)
class Route:
    """What is measured: one kind of message on each of some groups that work side by side, or between pairs of ranks.

    where: whether the messages stay inside a node.  group: this rank's.  ranks: its size.
    link_share: of the bytes of a rank's whole message, those that take the link: none goes to the rank itself.
    peer: of "send", the other rank of the pair; None where this rank has none, and only waits.
    """

    kind: Kind
    where: Where
    group: dist.ProcessGroup | None
    ranks: int
    link_share: float = 1.0
    peer: int | None = None


@dataclasses.dataclass(frozen=True)
class MessageTimes:
    """What was measured of one kind of message.

    seconds: by bytes that each rank sends over the link; from the start until the last rank has everything.
    issue_s: of a collective, the part in which the issuing thread is busy.
    line: through these times.
    """

    kind: Kind
    where: Where
    ranks: int
    seconds: Mapping[int, float]
    issue_s: float
    line: Line


class Meter:
    """Times messages; all ranks of a group use theirs in the same order.

    Args:
        group: all ranks that measure.
        device: where the messages lie.
        largest_bytes: no message is larger.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, largest_bytes: int = LARGEST_BYTES) -> None:
        least = _FIRST_BYTES * _GROWTH ** (_FEWEST_SIZES - 1)
        if type(largest_bytes) is not int or largest_bytes < least:
            raise CostError(f"largest_bytes={largest_bytes!r}: give {least} or more, for {_FEWEST_SIZES} sizes")
        self._group, self._device, self._largest_bytes = group, device, largest_bytes

    def measured(self, route: Route) -> MessageTimes:
        """The times of a route, for sizes from small to large."""
        seconds: dict[int, float] = {}
        issued: list[float] = []
        size = _FIRST_BYTES
        while True:
            run = self._exchange(route, size) if route.kind == "send" else self._collective(route, size, issued)
            self._clocked(run, 1)  # the first one makes connections
            once = max(self._agreed(self._clocked(run, 1)), 1e-6)
            rounds = min(max(int(_SIZE_S / (_IN_A_ROW * once)), _ROUNDS[0]), _ROUNDS[1])
            times = [self._clocked(run, _IN_A_ROW) for _ in range(rounds)]
            taken = self._agreed(statistics.median(times)) / (2 if route.kind == "send" else 1)
            whole = max(1, size // 4 // route.ranks) * route.ranks * 4 if route.kind != "send" else size
            seconds[round(whole * route.link_share)] = taken
            if size * _GROWTH > self._largest_bytes or (taken >= _LONG_S and len(seconds) >= _FEWEST_SIZES):
                break
            size *= _GROWTH
        issue_s = self._agreed(statistics.median(issued)) if issued else 0.0
        return MessageTimes(route.kind, route.where, route.ranks, seconds, issue_s, fitted(seconds))

    def in_flight(self, route: Route, size: int) -> int:
        """How many of several all-to-alls of so many bytes, started at once, move at a time: 1 to 4.

        The first of n is over after 1/n of the time of all where they move one after the other, and after k/n where k
        share the link.
        """
        if self._device.type == "cuda":
            return 1  # NCCL runs what a communicator is given in order, on one stream
        elements = max(1, size // 4 // route.ranks) * route.ranks
        pairs = [[torch.zeros(elements, device=self._device) for _ in range(2)] for _ in range(_AT_ONCE)]
        shares = []
        for _ in range(_ROUNDS[0] + 1):
            dist.barrier(self._group)
            self._finish()
            began = time.perf_counter()
            started = [
                dist.all_to_all_single(received, sent, group=route.group, async_op=True) for received, sent in pairs
            ]
            ends = []
            for work in started:
                work.wait()
                self._finish()
                ends.append(time.perf_counter() - began)
            shares.append(ends[0] / ends[-1])
        share = self._agreed(statistics.median(shares[1:]))  # the first round makes connections
        return min(max(round(share * _AT_ONCE), 1), _AT_ONCE)

    def _exchange(self, route: Route, size: int) -> Callable[[], None]:
        """There and back, of which half is counted."""
        peer, group = route.peer, route.group
        buffer = torch.zeros(size // 4, device=self._device)
        if peer is None:
            return lambda: None
        is_first = dist.get_rank(group) < peer

        def there_and_back() -> None:
            for sends in (is_first, not is_first):
                if sends:
                    dist.send(buffer, group=group, group_dst=peer)
                else:
                    dist.recv(buffer, group=group, group_src=peer)
            self._finish()

        return there_and_back

    def _collective(self, route: Route, size: int, issued: list[float]) -> Callable[[], None]:
        elements = max(1, size // 4 // route.ranks) * route.ranks
        everything = torch.zeros(elements, device=self._device)
        if route.kind == "all_to_all":
            received = torch.empty_like(everything)

            def start() -> Any:
                return dist.all_to_all_single(received, everything, group=route.group, async_op=True)
        else:
            own = torch.zeros(elements // route.ranks, device=self._device)

            def start() -> Any:
                return dist.all_gather_into_tensor(everything, own, group=route.group, async_op=True)

        def run() -> None:
            began = time.perf_counter()
            work = start()
            issued.append(time.perf_counter() - began)
            work.wait()
            self._finish()

        return run

    def _clocked(self, run: Callable[[], None], count: int) -> float:
        """Seconds of one of several in a row."""
        dist.barrier(self._group)
        self._finish()
        began = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - began) / count

    def _agreed(self, seconds: float) -> float:
        """The longest of all ranks."""
        longest = torch.tensor([seconds], dtype=torch.float64, device=self._device)
        dist.all_reduce(longest, dist.ReduceOp.MAX, self._group)
        return float(longest.item())

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
