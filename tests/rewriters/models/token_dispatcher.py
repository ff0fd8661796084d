"""The shape of torchtitan: a dispatcher with its own exchanges, experts in a ``with``, exchanges in ``return``."""

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

EXPECTED = {
    "softmax": "router",
    "silu": "experts/experts",
    "sigmoid": "shared",
    "neg": "experts/dispatch",
    "abs": "experts/combine/combine",
}
LAUNCHES = ["experts/dispatch/dispatch", "experts/combine/combine"]


class Dispatcher:
    def dispatch(self, x: Tensor) -> Tensor:
        return self._token_exchange(-x)

    def _token_exchange(self, x: Tensor) -> Tensor:
        return self._dispatch_token_exchange(x)

    def _dispatch_token_exchange(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        return x

    def combine(self, x: Tensor) -> Tensor:
        return all_to_all_single_autograd(x.abs(), None, None, dist.group.WORLD)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token_dispatcher = Dispatcher()
        self.inner_experts = nn.Sequential(nn.Linear(4, 4), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        rows = self.token_dispatcher.dispatch(x)
        with contextlib.nullcontext():
            rows = self.inner_experts(rows)
        return self.token_dispatcher.combine(rows)


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(4, 1), nn.Softmax(0))
        self.routed_experts = Routed()
        self.shared_experts = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        out = self.routed_experts(x * scores)
        shared = self.shared_experts(x) if self.shared_experts is not None else None
        return out if shared is None else out + shared


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MoE(), (torch.randn(3, 4),)
