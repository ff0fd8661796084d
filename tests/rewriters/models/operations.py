"""The shape of SGLang: a layer already cut into operations that pass a bag of state on."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

EXPECTED = {
    "softmax": "router",
    "silu": "experts",
    "sin": "dispatch/dispatch",
    "cos": "combine/combine",
    "sigmoid": "shared",
}
LAUNCHES = ["dispatch/dispatch", "combine/combine"]  # around the call, and around the exchange in it


class Dispatcher:
    def dispatch_a(self, x: Tensor) -> Tensor:
        return fc.all_to_all_single_autograd(x.sin(), None, None, dist.group.WORLD)

    def dispatch_b(self, rows: Tensor) -> Tensor:
        return rows + 0.0

    def combine_a(self, x: Tensor) -> Tensor:
        return fc.all_to_all_single_autograd(x.cos(), None, None, dist.group.WORLD)

    def combine_b(self, rows: Tensor) -> Tensor:
        return rows + 0.0


class Experts(nn.Sequential):
    dispatcher: Dispatcher


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 1), nn.Softmax(0))
        self.experts = Experts(nn.Linear(4, 4), nn.SiLU())
        self.experts.dispatcher = Dispatcher()
        self.shared_experts = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def op_gate(self, state: dict[str, Tensor]) -> None:
        state["scores"] = self.gate(state["x"])

    def op_dispatch_a(self, state: dict[str, Tensor]) -> None:
        state["rows"] = self.experts.dispatcher.dispatch_a(state["x"] * state["scores"])

    def op_shared_experts(self, state: dict[str, Tensor]) -> None:
        state["shared"] = self.shared_experts(state["x"])

    def op_dispatch_b(self, state: dict[str, Tensor]) -> None:
        state["rows"] = self.experts.dispatcher.dispatch_b(state["rows"])

    def op_experts(self, state: dict[str, Tensor]) -> None:
        state["rows"] = self.experts(state["rows"])

    def op_combine(self, state: dict[str, Tensor]) -> None:
        state["rows"] = self.experts.dispatcher.combine_a(state["rows"])
        state["out"] = self.experts.dispatcher.combine_b(state["rows"]) + state["shared"]

    def forward(self, x: Tensor) -> Tensor:
        state = {"x": x}
        for op in (self.op_gate, self.op_dispatch_a, self.op_shared_experts, self.op_dispatch_b, self.op_experts):
            op(state)
        self.op_combine(state)
        return state["out"]


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Block(), (torch.randn(3, 4),)
