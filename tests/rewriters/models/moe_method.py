"""The shape of DeepSeek-V3 in transformers 4: the loop over experts is in a method of the block."""

import torch
from torch import Tensor, nn

EXPECTED = {"softmax": "router", "silu": "experts", "sigmoid": "shared"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.SiLU()) for _ in range(2))
        self.shared_experts = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def moe(self, x: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert_idx in range(len(self.experts)):
            expert = self.experts[expert_idx]
            out[:] += expert(x) * weights[:, expert_idx, None]
        return out

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        weights = self.gate(x)
        x = self.moe(x, weights).view(x.shape)
        return x + self.shared_experts(residual)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Block(), (torch.randn(3, 4),)
