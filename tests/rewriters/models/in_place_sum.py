"""The shape of Llama 4 and nanoMoE: the shared expert's output is added to in place; experts by matrix products."""

import torch
from torch import Tensor, nn

EXPECTED = {"softmax": "router", "silu": "experts", "sigmoid": "shared", "tanh": "attention"}


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(torch.bmm(x.view(2, -1, 4), self.weight)).view(-1, 4)


class TextMoe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
        self.experts = Experts()
        self.shared_expert = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.reshape(-1, 4)
        scores = self.router(x)
        routed_in = torch.cat([x, x]) * scores.t().reshape(-1, 1)
        routed_out = self.experts(routed_in)
        out = self.shared_expert(x)
        out.add_(routed_out.reshape(2, -1, 4).sum(0))
        return out, scores


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = nn.ModuleList([nn.Tanh()]), TextMoe()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn[0](x)
        out, _ = self.feed_forward(x)
        return out


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Layer(), (torch.randn(6, 4),)
