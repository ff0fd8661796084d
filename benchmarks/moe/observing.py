"""What a step waits for and what it occupies, by PyTorch's profiler, which every runtime can be watched with alike."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.moe.case import MoeCase

__all__ = ["Observed", "Watched", "combined", "outermost", "start_watching"]

_WAITS = "_c10d_functional::wait_tensor"
_MEMORY = "[memory]"


class Observed(NamedTuple):
    """Of a step.

    exposed_s: what this rank waited for collectives; for messages between stages it waits elsewhere.
    peak_bytes: the most that was allocated at a time since the step began, with temporaries and new gradients.
    waits: how often it waited for a collective.
    """

    exposed_s: float
    peak_bytes: int
    waits: int


def start_watching() -> None:
    """Load the profiler, which takes a second or more; all ranks do so before the first step that is watched."""
    with _profile():
        pass
    dist.barrier()


class Watched:
    """A step whose first run here is watched; whatever is done in its first run alone has to be done before."""

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


def _profile() -> profile:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def _observed(step: Callable[[], Any]) -> Observed:
    with _profile() as seen:
        dist.barrier()  # no rank waits for another one's profiler
        step()
    run: Any = seen.profiler
    waits: dict[int, list[tuple[int, int]]] = {}
    held, peak = 0, 0
    for event in sorted(run.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == _WAITS:
            waits.setdefault(event.start_thread_id(), []).append((event.start_ns(), event.end_ns()))
        elif event.name() == _MEMORY:
            held += event.nbytes()
            peak = max(peak, held)
    apart = [span for own in waits.values() for span in outermost(own)]
    return Observed(sum(end - start for start, end in apart) / 1e9, peak, len(apart))


def outermost(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that lie in no other one; PyTorch's dispatcher writes several for one call.

    >>> outermost([(1, 2), (0, 4), (5, 6)])
    [(0, 4), (5, 6)]
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


def combined(own: Observed, case: MoeCase) -> dict[str, Any]:
    """Of all ranks, as a simulation says it and results have it.

    Exposed on the ranks of one pipeline together, on average over the pipelines; the peak of the rank that has most.
    """
    waited, peak = (torch.tensor(value, dtype=torch.float64) for value in (own.exposed_s, own.peak_bytes))
    dist.all_reduce(waited)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    pipelines = case.expert_ranks * case.data_ranks
    return {"exposed_seconds": waited.item() / pipelines, "peak_bytes": int(peak.item())}
