"""Rank program: what the profiler sees of known steps, and of the same schedule on each runtime."""

import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from benchmarks.eager_names import SENDS_TO_ITSELF
from benchmarks.launch import end_rank
from benchmarks.moe.case import MoeCase
from benchmarks.moe.groups import start_groups
from benchmarks.moe.observing import Observed, Watched, combined, start_watching
from benchmarks.moe.preparing import Preparer
from benchmarks.moe.variant import Variant

LATE_S = 0.25
RUNTIMES = ("annopipe", "attached", *(() if SENDS_TO_ITSELF else ("eager",)))
MEGABYTE = 1_000_000


def known_step(rank: int) -> Any:
    """Rank 1 comes late to an all-reduce; two megabytes live at a time, then a third."""

    def step() -> None:
        first = torch.ones(MEGABYTE, dtype=torch.uint8)
        second = torch.ones(MEGABYTE, dtype=torch.uint8)
        del first
        third = torch.ones(MEGABYTE, dtype=torch.uint8)
        time.sleep(LATE_S * rank)
        fc.wait_tensor(fc.all_reduce(torch.ones(1), "sum", dist.group.WORLD))
        del second, third

    return step


def main() -> None:
    torch.set_num_threads(1)
    case = MoeCase(pipeline_ranks=1, expert_ranks=2, microbatches=4, network="emulated", rate_bytes_per_s=1e8)
    groups, rank = start_groups(case), dist.get_rank()
    joined = combined(Observed(1.0 + rank, 100 * (rank + 1), 1), case)
    assert joined == {"exposed_seconds": 1.5, "peak_bytes": 200}
    start_watching()
    known = Watched(known_step(rank))
    known()
    seen = known.seen
    known()
    assert known.seen == seen, "the first run alone is watched"
    assert (seen.exposed_s > LATE_S / 2) == (rank == 0), seen
    assert 2 * MEGABYTE <= seen.peak_bytes < 3 * MEGABYTE, seen
    assert seen.waits == 1, seen
    preparer, waits = Preparer(case, groups), {}
    for runtime in RUNTIMES:
        variant = Variant(runtime, "dualpipev", "sequential" if runtime == "attached" else None)
        watched = Watched(preparer.prepared(variant).step.run)
        watched()
        waits[runtime] = watched.seen.waits
    assert len(set(waits.values())) == 1, waits
    end_rank()


if __name__ == "__main__":
    main()
