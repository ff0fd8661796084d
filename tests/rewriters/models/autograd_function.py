"""The shape of DeepSpeed: an autograd.Function around the exchange, applied before and behind the experts."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

EXPECTED = {"softmax": "router", "silu": "experts", "cos": ""}
LAUNCHES = ["dispatch", "combine"]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        return fc.wait_tensor(fc.all_to_all_single(x, None, None, group))

    @staticmethod
    def backward(ctx, *grads):
        return None, _AllToAll.apply(ctx.group, grads[0])


class MOELayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 1), nn.Softmax(0))
        self.experts = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
        self.ep_size = 2
        self.ep_group = dist.group.WORLD

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        if self.ep_size > 1:  # noqa: SIM108 - the shape is that of the original
            rows = _AllToAll.apply(self.ep_group, x * scores)
        else:
            rows = x.contiguous()
        rows = self.experts(rows)
        if self.ep_size > 1:
            rows = _AllToAll.apply(self.ep_group, rows)
        return rows.cos()


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MOELayer(), (torch.randn(3, 4),)
