"""The shape of megablocks and OLMo-core: exchanges return handles, and are waited for behind other work."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

EXPECTED = {"silu": "experts", "softmax": "router", "sigmoid": "shared", "neg": "", "sin": "dispatch", "cos": "combine"}
LAUNCHES = ["dispatch", "combine"]


class Handle:
    def __init__(self, value: Tensor) -> None:
        self.value = value

    def wait(self) -> Tensor:
        return self.value + 0.0


class ParallelMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(4, 1), nn.Softmax(0))
        self.experts = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
        self.shared_mlp = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def permute_and_all_to_all(self, x: Tensor) -> tuple[Tensor, Handle]:
        rows = fc.all_to_all_single_autograd(x.sin(), None, None, dist.group.WORLD)
        return rows, Handle(rows)

    def reverse_all_to_all(self, x: Tensor) -> tuple[Tensor, Handle]:
        rows = fc.all_to_all_single_autograd(x.cos(), None, None, dist.group.WORLD)
        return rows, Handle(rows)

    def compute_local_experts(self, x: Tensor) -> Tensor:
        return self.experts(x)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        rows, rows_handle = self.permute_and_all_to_all(x)
        shared = self.shared_mlp(x)
        rows_handle.wait()
        rows = self.compute_local_experts(rows * scores)
        rows, back = self.reverse_all_to_all(rows)
        out = -shared
        back.wait()
        return rows + out


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ParallelMLP(), (torch.randn(3, 4),)
