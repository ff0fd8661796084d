"""The two process groups of every rank: its pipeline and its experts; and how long messages take in them."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from annopipe.models.exchange import exchange, launch, wait
from benchmarks.groups import emulated
from benchmarks.moe.case import MoeCase
from benchmarks.moe.model import STRETCHES, TRANSFERS
from benchmarks.moe.pacing import Paces, computed

__all__ = ["Groups", "hand_over_s", "measured_paces", "start_groups"]

_ROUNDS = 9
_IN_A_ROW = 4  # transfers: the first bytes after a pause go through a limited network faster


@dataclasses.dataclass(frozen=True)
class Groups:
    """Rank ``p * expert_ranks + e`` is rank p of its pipeline and rank e among those that share its experts."""

    pipeline: dist.ProcessGroup
    experts: dist.ProcessGroup
    pipeline_rank: int


def start_groups(case: MoeCase) -> Groups:
    """Join the others; all ranks make all groups, in the same order."""
    dist.init_process_group("gloo")
    rank, width = dist.get_rank(), case.expert_ranks
    pipelines = [list(range(e, case.ranks, width)) for e in range(width)]
    experts = [list(range(p * width, (p + 1) * width)) for p in range(case.pipeline_ranks)]
    of_pipelines = [dist.new_group(members) for members in pipelines]
    if case.network == "emulated":  # as on a medium that the group shares
        own = case.rate_bytes_per_s / width
        of_experts = [emulated.create(bandwidth_bytes_per_s=own, ranks=members) for members in experts]
    else:
        of_experts = [dist.new_group(members) for members in experts]
    return Groups(of_pipelines[rank % width], of_experts[rank // width], rank // width)


def measured_paces(case: MoeCase, groups: Groups) -> tuple[float, Paces]:
    """What a stretch of paced computation asks for, and what it and a transfer then take on the slowest rank.

    All groups exchange at the same time.
    """
    rows = torch.zeros(case.rows * case.top_k, case.width)
    weight = torch.zeros(case.width)
    moved_s = _transfer_s(rows, groups, _IN_A_ROW)
    issue_s = _issue_s(rows, groups) if case.nano_batches > 1 else 0.0
    latency_s = 0.0
    if case.nano_batches > 1:
        share = 1.0 / case.nano_batches
        part_s = _transfer_s(rows[: len(rows) // case.nano_batches], groups, _IN_A_ROW * case.nano_batches)
        latency_s = min(moved_s, max(0.0, (part_s - share * moved_s) / (1.0 - share) - issue_s))
    asked_s = case.ratio * moved_s * TRANSFERS / STRETCHES

    def in_a_row() -> None:
        with torch.no_grad():
            for _ in range(STRETCHES):
                computed(rows, weight, asked_s)

    stretch_s = _slowest(in_a_row) / STRETCHES
    return asked_s, Paces(stretch_s, moved_s - issue_s, asked_s, len(rows), latency_s, issue_s)


def _transfer_s(rows: torch.Tensor, groups: Groups, count: int) -> float:
    """What an exchange of so many rows takes, as one of several in a row."""
    ranks = dist.get_world_size(groups.experts)
    share = torch.full((ranks,), len(rows) // ranks)

    def in_a_row() -> None:
        for _ in range(count):
            exchange(rows, share, share, len(rows), groups.experts)

    return _slowest(in_a_row) / count


def _issue_s(rows: torch.Tensor, groups: Groups) -> float:
    """What the thread spends to start an exchange: the median of some, of the rank where that is longest."""
    ranks = dist.get_world_size(groups.experts)
    share = torch.full((ranks,), len(rows) // ranks)
    times = []
    for _ in range(_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        moving = launch(rows, share, share, len(rows), groups.experts)
        times.append(time.perf_counter() - started)
        wait(moving)
    return _largest(statistics.median(times))


def hand_over_s(case: MoeCase, groups: Groups) -> float:
    """Seconds from sending one microbatch's result until the next rank of the pipeline has it; 0 for one rank."""
    if case.pipeline_ranks == 1:
        return 0.0
    buffer = torch.zeros(case.rows, case.width)
    peer = groups.pipeline_rank ^ 1
    if peer >= case.pipeline_ranks:
        return _slowest(lambda: None)

    def there_and_back() -> None:
        if groups.pipeline_rank < peer:
            dist.send(buffer, group=groups.pipeline, group_dst=peer)
            dist.recv(buffer, group=groups.pipeline, group_src=peer)
        else:
            dist.recv(buffer, group=groups.pipeline, group_src=peer)
            dist.send(buffer, group=groups.pipeline, group_dst=peer)

    return _slowest(there_and_back) / 2


def _slowest(run: Callable[[], object]) -> float:
    """The median of some runs, of the rank where that is longest."""
    times = []
    for _ in range(_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return _largest(statistics.median(times))


def _largest(seconds_here: float) -> float:
    seconds = torch.tensor([seconds_here], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()
