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

__all__ = ["STRETCHES", "TRANSFERS", "PacedBlock", "example_input", "mean_square", "stage_module"]


# Of a paced block, forward and backward together.
STRETCHES = 6
TRANSFERS = 4


class PacedBlock(nn.Module):
    """A transformer block with experts whose rows really go to the other ranks and back, evenly.

    seconds: what attention takes, and what the experts take, each way.
    """

    send: Tensor

    def __init__(self, case: MoeCase, seconds: float, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.attention = nn.Parameter(torch.zeros(case.width))
        self.experts = nn.Parameter(torch.zeros(case.width))
        self.rows, self.top_k, self.seconds, self.group = case.rows * case.top_k, case.top_k, seconds, group
        ranks = dist.get_world_size(group)
        self.register_buffer("send", torch.full((ranks,), self.rows // ranks))

    def forward(self, x: Tensor) -> Tensor:
        """Rows to rows, [rows, width]."""
        with ap.region("attention"):
            x = computed(x, self.attention, self.seconds)
        with ap.region("router"):
            rows = x.repeat(self.top_k, 1)
        with ap.comm("dispatch"):
            rows = exchange(rows, self.send, self.send, self.rows, self.group)
        with ap.region("experts"):
            rows = computed(rows, self.experts, self.seconds)
        with ap.comm("combine"):
            rows = exchange(rows, self.send, self.send, self.rows, self.group)
        with ap.region("unpermute"):
            return x + rows.view(self.top_k, *x.shape).mean(0)


def stage_module(case: MoeCase, blocks: int, stage: int, seconds: float, group: dist.ProcessGroup) -> nn.Module:
    """One stage: so many blocks, with the names and values of their parameters in the whole model."""
    layers = range(stage * blocks, (stage + 1) * blocks)
    if case.paced:
        return nn.Sequential(OrderedDict((f"{layer}", PacedBlock(case, seconds, group)) for layer in layers))
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
