"""The stages of the MoE job: blocks whose computation is paced, or blocks of a DeepSeek-V3-style model."""

import dataclasses
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, Routing
from annopipe.models.exchange import exchange
from benchmarks.moe.case import MoeCase, copies_to
from benchmarks.moe.pacing import computed

__all__ = ["STRETCHES", "TRANSFERS", "PacedBlock", "blocks_module", "example_input", "mean_square", "stage_module"]


# Of a paced block, forward and backward together.
STRETCHES = 6
TRANSFERS = 4


class PacedBlock(nn.Module):
    """A transformer block with experts whose rows really go to the other ranks and back.

    seconds: what attention takes, and what the experts of a rank with its even share take, each way, for a whole
        microbatch.
    skew: how many times its even share of the rows the first expert rank gets.
    """

    sent: Tensor
    received: Tensor

    def __init__(self, case: MoeCase, seconds: float, group: dist.ProcessGroup, skew: float = 1.0) -> None:
        super().__init__()
        self.attention = nn.Parameter(torch.zeros(case.width))
        self.experts = nn.Parameter(torch.zeros(case.width))
        self.rows, self.top_k, self.seconds, self.group = case.rows, case.top_k, seconds, group
        ranks = dist.get_world_size(group)
        copies = copies_to(case.top_k, ranks, skew)
        self.arriving = copies[dist.get_rank(group)] * ranks  # of each token of a rank
        # Copies of one token that go to each rank, and that come from each.
        self.register_buffer("sent", torch.tensor(copies))
        self.register_buffer("received", torch.full((ranks,), copies[dist.get_rank(group)]))

    def forward(self, x: Tensor) -> Tensor:
        """Rows to rows, [rows, width]; a nano-batch has fewer of them."""
        seconds = self.seconds * len(x) / self.rows
        tokens, total = len(x), len(x) * self.top_k
        arriving = tokens * self.arriving
        with ap.region("attention"):
            x = computed(x, self.attention, seconds)
        with ap.region("router"):
            rows, sent, received = x.repeat(self.top_k, 1), self.sent * tokens, self.received * tokens
        with ap.comm("dispatch"):
            rows = exchange(rows, sent, received, arriving, self.group)
        with ap.region("experts"):
            rows = computed(rows, self.experts, seconds * self.arriving / self.top_k)
        with ap.comm("combine"):
            rows = exchange(rows, received, sent, total, self.group)
        with ap.region("unpermute"):
            return x + rows.view(self.top_k, *x.shape).mean(0)


def stage_module(
    case: MoeCase, blocks: int, stage: int, seconds: float, group: dist.ProcessGroup, skew: float = 1.0
) -> nn.Module:
    """One stage of so many blocks."""
    return blocks_module(case, range(stage * blocks, (stage + 1) * blocks), seconds, group, skew)


def blocks_module(
    case: MoeCase, layers: range, seconds: float, group: dist.ProcessGroup, skew: float = 1.0
) -> nn.Module:
    """These blocks, with the names and values of their parameters in the whole model."""
    if case.paced:
        lasting = {case.blocks - 1: seconds * case.head}
        return nn.Sequential(
            OrderedDict((f"{layer}", PacedBlock(case, lasting.get(layer, seconds), group, skew)) for layer in layers)
        )
    small = DeepSeekV3Config.small()
    config = dataclasses.replace(
        small,
        layers=layers.stop,
        dense_layers=0,
        hidden=case.width,
        moe_intermediate=case.width,
        experts=4 * case.expert_ranks,
        top_k=min(case.top_k, 2),
        routing=Routing("balanced"),
    )
    return DeepSeekV3Stage(config, layers, group)


def example_input(case: MoeCase, seed: int = 0) -> Tensor:
    """One microbatch."""
    shape = (case.rows, case.width) if case.paced else (1, case.rows, case.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """The loss."""
    return ((output - target) ** 2).mean()
