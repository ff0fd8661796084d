"""What a step waits for and what it occupies, by PyTorch's profiler, which every runtime can be watched with alike."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.moe.case import MoeCase

__all__ = ["Observed", "Watched", "combined", "union_s"]

_WAITS = "_c10d_functional::wait_tensor"
_MEMORY = "[memory]"


class Observed(NamedTuple):
    """Of a step.

    exposed_s: what ranks waited for collectives.
    peak_bytes: the most that was allocated at a time since the step began, with temporaries and new gradients.
    """

    exposed_s: float
    peak_bytes: int

    def plain(self) -> dict[str, Any]:
        """As results have it."""
        return {"exposed_seconds": self.exposed_s, "peak_bytes": self.peak_bytes}


class Watched:
    """A step whose first run on this rank is watched."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step
        self._seen: list[Observed] = []

    def __call__(self) -> None:
        """Run the step."""
        if self._seen:
            self._step()
        else:
            self._seen.append(_observed(self._step))

    @property
    def seen(self) -> Observed:
        """What its first run did."""
        return self._seen[0]


def _observed(step: Callable[[], Any]) -> Observed:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    run: Any = seen.profiler
    waits: dict[int, list[tuple[int, int]]] = {}
    held, peak = 0, 0
    for event in run.kineto_results.events():
        if event.name() == _WAITS:
            waits.setdefault(event.start_thread_id(), []).append((event.start_ns(), event.end_ns()))
        elif event.name() == _MEMORY:
            held += event.nbytes()
            peak = max(peak, held)
    return Observed(sum(union_s(own) for own in waits.values()), peak)


def union_s(spans_ns: Iterable[tuple[int, int]]) -> float:
    """How long at least one of these spans lasts; PyTorch's dispatcher writes several for one call.

    >>> union_s([(0, 4_000_000_000), (1_000_000_000, 2_000_000_000), (5_000_000_000, 6_000_000_000)])
    5.0
    """
    total_ns = until_ns = 0
    for start_ns, end_ns in sorted(spans_ns):
        total_ns += max(0, end_ns - max(start_ns, until_ns))
        until_ns = max(until_ns, end_ns)
    return total_ns / 1e9


def combined(own: Observed, case: MoeCase) -> Observed:
    """Of all ranks, as a simulation says it: exposed on all ranks of a pipeline together; the peak of one rank."""
    waited, peak = (torch.tensor(value, dtype=torch.float64) for value in own)
    dist.all_reduce(waited)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return Observed(waited.item() / (case.expert_ranks * case.data_ranks), int(peak.item()))
