"""The shape of transformers 4: routing and the loop over experts are inline, and the block returns a tuple."""

import torch
from torch import Tensor, nn

EXPECTED = {"softmax": "router", "silu": "experts", "index_add": "experts", "cos": ""}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.SiLU()) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.view(-1, 4).cos()
        routing_weights = self.gate(flat)
        final = torch.zeros_like(flat)
        rows = torch.arange(flat.shape[0])
        for expert_idx in range(len(self.experts)):
            expert_layer = self.experts[expert_idx]
            current = expert_layer(flat[rows]) * routing_weights[rows, expert_idx, None]
            final.index_add_(0, rows, current)
        return final.view(x.shape), routing_weights


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Block(), (torch.randn(2, 3, 4),)
