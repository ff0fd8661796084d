"""The process groups of every rank: its pipeline, its experts, its copies; and how long messages take in them."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from annopipe.models.exchange import exchange, launch, wait
from annopipe.workloads.model_layers import holds_experts
from benchmarks.groups import emulated
from benchmarks.moe.case import MoeCase, copies_to
from benchmarks.moe.model import STRETCHES, TRANSFERS
from benchmarks.moe.pacing import Paces, computed

__all__ = ["Groups", "hand_over_s", "measured_paces", "start_groups", "sum_gradients", "sum_s"]

_ROUNDS = 9
_IN_A_ROW = 4  # transfers: the first bytes after a pause go through a limited network faster


@dataclasses.dataclass(frozen=True)
class Groups:
    """Rank ``(d * pipeline_ranks + p) * expert_ranks + e``: copy d, rank p of its pipeline, rank e of its experts.

    data: the ranks that hold the same experts; sharing: those that hold the same other parameters. Both None where
        there is one copy: gradients are not summed then.
    """

    pipeline: dist.ProcessGroup
    experts: dist.ProcessGroup
    pipeline_rank: int
    data: dist.ProcessGroup | None = None
    sharing: dist.ProcessGroup | None = None

    @property
    def place(self) -> str:
        """What this rank's gradients are called by: the same names in every schedule."""
        copy = "" if self.data is None else f"copy {dist.get_rank(self.data)} "
        return f"{copy}expert rank {dist.get_rank(self.experts)}"


def start_groups(case: MoeCase) -> Groups:
    """Join the others; all ranks make all groups, in the same order."""
    dist.init_process_group("gloo")
    width, depth, copies = case.expert_ranks, case.pipeline_ranks, case.data_ranks
    each_copy = [range(copy * depth * width, (copy + 1) * depth * width) for copy in range(copies)]
    pipeline = _own([list(copy[e::width]) for copy in each_copy for e in range(width)])
    experts = [list(copy[p * width : (p + 1) * width]) for copy in each_copy for p in range(depth)]
    if case.network == "emulated":  # as on a medium that the group shares
        own = case.rate_bytes_per_s / width
        of_experts = _own(experts, lambda members: emulated.create(bandwidth_bytes_per_s=own, ranks=members))
    else:
        of_experts = _own(experts)
    place = dist.get_rank() // width % depth
    if copies == 1:
        return Groups(pipeline, of_experts, place)
    data = _own([[copy[at] for copy in each_copy] for at in range(depth * width)])
    sharing = _own([[copy[p * width + e] for copy in each_copy for e in range(width)] for p in range(depth)])
    return Groups(pipeline, of_experts, place, data, sharing)


def _own(
    several: Sequence[list[int]], make: Callable[[list[int]], dist.ProcessGroup] = dist.new_group
) -> dist.ProcessGroup:
    """Make all these groups; returns the one that this rank is in."""
    made = [make(members) for members in several]
    return next(group for group, members in zip(made, several, strict=True) if dist.get_rank() in members)


def measured_paces(case: MoeCase, groups: Groups, skew: float = 1.0) -> tuple[float, Paces]:
    """What a stretch of paced computation asks for, and what it and a transfer then take on the slowest rank.

    All groups exchange at the same time. A stretch is as long as with even routing, whatever the skew.
    """
    even_s = _transfer_s(case, groups, 1.0)
    moved_s = even_s if skew == 1.0 else _transfer_s(case, groups, skew)
    parts = max((variant.nano_batches for variant in case.variants), default=1)
    issue_s = latency_s = 0.0
    if parts > 1:
        issue_s = _issue_s(case, groups, skew)
        share = 1.0 / parts
        part_s = _transfer_s(case, groups, skew, parts)
        latency_s = min(moved_s, max(0.0, (part_s - share * moved_s) / (1.0 - share) - issue_s))
    asked_s = case.ratio * even_s * TRANSFERS / STRETCHES
    rows, weight = torch.zeros(case.rows * case.top_k, case.width), torch.zeros(case.width)

    def in_a_row() -> None:
        with torch.no_grad():
            for _ in range(STRETCHES):
                computed(rows, weight, asked_s)

    stretch_s = _slowest(in_a_row) / STRETCHES
    _, _, arriving = _rows(case, groups, skew)
    moved_rows = case.rows * case.top_k + arriving
    return asked_s, Paces(stretch_s, moved_s - issue_s, asked_s, moved_rows, latency_s, issue_s)


def _rows(case: MoeCase, groups: Groups, skew: float, parts: int = 1) -> tuple[Tensor, Tensor, int]:
    """Rows that this rank sends to each expert rank, gets from each, and gets in all, in one dispatch."""
    ranks, tokens = dist.get_world_size(groups.experts), case.rows // parts
    copies = copies_to(case.top_k, ranks, skew)
    own = copies[dist.get_rank(groups.experts)]
    return torch.tensor(copies) * tokens, torch.full((ranks,), own * tokens), own * ranks * tokens


def _transfer_s(case: MoeCase, groups: Groups, skew: float, parts: int = 1) -> float:
    """What an exchange of a microbatch, or of a part of it, takes, as one of several in a row."""
    sent, received, arriving = _rows(case, groups, skew, parts)
    rows, count = torch.zeros(int(sent.sum()), case.width), _IN_A_ROW * parts

    def in_a_row() -> None:
        for _ in range(count):
            exchange(rows, sent, received, arriving, groups.experts)

    return _slowest(in_a_row) / count


def _issue_s(case: MoeCase, groups: Groups, skew: float) -> float:
    """What the thread spends to start an exchange: the median of some, of the rank where that is longest."""
    sent, received, arriving = _rows(case, groups, skew)
    rows = torch.zeros(int(sent.sum()), case.width)
    times = []
    for _ in range(_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        moving = launch(rows, sent, received, arriving, groups.experts)
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


def sum_gradients(modules: Sequence[nn.Module], groups: Groups) -> None:
    """Add up the gradients of the copies: those of experts over their copies, others over the expert ranks, too."""
    if groups.data is None or groups.sharing is None:
        return
    named = [each for module in modules for each in module.named_parameters() if each[1].grad is not None]
    for group, of_experts in ((groups.data, True), (groups.sharing, False)):
        own = [parameter.grad for name, parameter in named if holds_experts(name) == of_experts]
        if not own:
            continue
        flat = torch.cat([gradient.flatten() for gradient in own if gradient is not None])
        dist.all_reduce(flat, group=group)
        place = 0
        for gradient in own:
            if gradient is not None:
                gradient.copy_(flat[place : place + gradient.numel()].view_as(gradient))
                place += gradient.numel()


def sum_s(modules: Sequence[nn.Module], groups: Groups) -> float:
    """Seconds that the sum of gradients takes on the slowest rank, when all begin together; 0 where there is none."""
    if groups.data is None:
        return 0.0
    for module in modules:
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
    found = _slowest(lambda: sum_gradients(modules, groups))
    for module in modules:
        module.zero_grad()
    return found


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
