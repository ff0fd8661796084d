"""The shape of Megatron-LM: the layer in steps, which are methods; the experts behind a function of a function."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

EXPECTED = {"softmax": "router", "silu": "experts", "neg": "dispatch", "abs": "combine", "cos": "", "sigmoid": "shared"}
LAUNCHES = ["dispatch", "combine"]


def apply_module(module: nn.Module) -> nn.Module:
    return module


class MoELayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(4, 1), nn.Softmax(0))
        self.experts = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
        self.shared = nn.Linear(4, 4)

    def route(self, x: Tensor) -> Tensor:
        return self.router(x)

    def dispatch(self, x: Tensor) -> Tensor:
        return all_to_all_single_autograd(-x, None, None, dist.group.WORLD)

    def routed_experts_compute(self, x: Tensor) -> Tensor:
        return apply_module(self.experts)(x)

    def combine(self, x: Tensor) -> Tensor:
        return all_to_all_single_autograd(x.abs(), None, None, dist.group.WORLD)

    def shared_experts_compute(self, x: Tensor) -> Tensor:
        return self.shared(x).sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        def custom_forward(x: Tensor) -> Tensor:
            try:
                shared = self.shared_experts_compute(x)
                scores = self.route(x)
                rows = self.dispatch(x * scores)
                rows = self.routed_experts_compute(rows)
                rows = self.combine(rows)
            except ValueError:
                return x
            return (shared + rows).cos()

        return custom_forward(x)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MoELayer(), (torch.randn(3, 4),)
