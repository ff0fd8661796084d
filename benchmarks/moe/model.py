"""The stages of the MoE job: blocks whose computation is paced, or blocks of a DeepSeek-V3-style model."""

import dataclasses
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, Routing
from annopipe.models.exchange import exchange
from benchmarks.moe.case import MoeCase
from benchmarks.moe.pacing import computed

__all__ = ["STRETCHES", "TRANSFERS", "PacedBlock", "blocks_module", "example_input", "mean_square", "stage_module"]


# Of a paced block, forward and backward together.
STRETCHES = 6
TRANSFERS = 4


class PacedBlock(nn.Module):
    """A transformer block with experts whose rows really go to the other ranks and back, evenly.

    seconds: what attention takes, and what the experts take, each way, for a whole microbatch.
    """

    one_each: Tensor

    def __init__(self, case: MoeCase, seconds: float, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.attention = nn.Parameter(torch.zeros(case.width))
        self.experts = nn.Parameter(torch.zeros(case.width))
        self.rows, self.top_k, self.seconds, self.group = case.rows, case.top_k, seconds, group
        self.register_buffer("one_each", torch.ones(dist.get_world_size(group), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Rows to rows, [rows, width]; a nano-batch has fewer of them."""
        seconds = self.seconds * len(x) / self.rows
        total = len(x) * self.top_k
        with ap.region("attention"):
            x = computed(x, self.attention, seconds)
        with ap.region("router"):
            rows, send = x.repeat(self.top_k, 1), self.one_each * (total // len(self.one_each))
        with ap.comm("dispatch"):
            rows = exchange(rows, send, send, total, self.group)
        with ap.region("experts"):
            rows = computed(rows, self.experts, seconds)
        with ap.comm("combine"):
            rows = exchange(rows, send, send, total, self.group)
        with ap.region("unpermute"):
            return x + rows.view(self.top_k, *x.shape).mean(0)


def stage_module(case: MoeCase, blocks: int, stage: int, seconds: float, group: dist.ProcessGroup) -> nn.Module:
    """One stage of so many blocks."""
    return blocks_module(case, range(stage * blocks, (stage + 1) * blocks), seconds, group)


def blocks_module(case: MoeCase, layers: range, seconds: float, group: dist.ProcessGroup) -> nn.Module:
    """These blocks, with the names and values of their parameters in the whole model."""
    if case.paced:
        lasting = {case.blocks - 1: seconds * case.head}
        return nn.Sequential(
            OrderedDict((f"{layer}", PacedBlock(case, lasting.get(layer, seconds), group)) for layer in layers)
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
