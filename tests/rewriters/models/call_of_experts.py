"""The shape of today's transformers: a gate, experts behind one call, shared experts in a sum, a decoder layer."""

import torch
from torch import Tensor, nn

# By operation: the region that its nodes are to be in; "" is none.
EXPECTED = {"tanh": "attention", "softmax": "router", "silu": "experts", "sigmoid": "shared", "cos": ""}


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert_idx in range(2):
            out = out + torch.nn.functional.silu(x @ self.weight[expert_idx]) * weights[:, expert_idx, None]
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
        self.experts = Experts()
        self.shared_experts = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, shape[-1])
        weights = self.gate(x)
        # every token to its experts
        y = self.experts(
            x,
            weights,  # of the router
        ).view(shape)
        return y + self.shared_experts(x).view(shape)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return x.tanh(), None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Block()

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.self_attn(x)
        return self.mlp((x + h).cos())


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Layer(), (torch.randn(2, 3, 4),)
