"""Modules in which every kind of tag occurs, to compare what the two ways of tracing make of them."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, PlainMoE
from annopipe.models.deepseek import tiny_stage
from tests.graphs.modules import Function, leaf
from tests.graphs.test_tracing import Cube, Tied, TiedInTurns

__all__ = ["TAGGED", "rows"]


def rows(graph: Any) -> list[tuple[str, ...]]:
    """The region table of a graph without the names of its nodes."""
    if graph is None:
        return []
    return [(str(r.node.target), r.region, r.kind, r.lane, r.phase, r.rule) for r in ap.region_table(graph)]


def nested(self: Any, x: Tensor) -> Tensor:
    with ap.region("outer"):
        x = self.a(x)
        with ap.region("inner"), ap.region("deep/er"):
            x = x.sin()
        x = x * 2
    return x + 1


@ap.region("decorated")
def scaled(x: Tensor, factor: float) -> Tensor:
    return torch.relu(x) * factor


@ap.comm("dispatch")
def exchanged(x: Tensor) -> Tensor:
    return x.flip(0)


def decorated(self: Any, x: Tensor) -> Tensor:
    return scaled(exchanged(self.a(x)), 2.0)


def in_lanes(self: Any, x: Tensor) -> Tensor:
    parts = []
    for part in ap.nano_batches(x, 2):
        with ap.region("mlp"):
            parts.append(self.a(part).tanh())
    with ap.nano_batch(1):
        last = parts[1] * 2
    return torch.cat([parts[0], last])


def with_function(self: Any, x: Tensor) -> Tensor:
    with ap.region("cube"):
        x = Cube.apply(self.a(x), 3)
    return x.sum(1)


class Known(nn.Module):
    """Layers without a tag of ours: modules known by their names, exchanges by torchtitan's annotation."""

    def __init__(self, *, exchanges: bool) -> None:
        super().__init__()
        self.exchanges = exchanges
        layer = {"attention": nn.Linear(4, 4), "mlp": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))}
        self.layers = nn.ModuleList(nn.ModuleDict(copy.deepcopy(layer)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer["attention"](x).sin()
            if self.exchanges:
                with fx_traceback.annotate({"EP": "dispatch"}):
                    x = x.flip(0)
            x = layer["mlp"](x)
        return x


def linear(forward: Callable[..., Any]) -> tuple[nn.Module, tuple[Any, ...]]:
    return Function(forward, a=nn.Linear(4, 4)), (leaf(6, 4),)


TAGGED: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "DeepSeek stage": tiny_stage,
    "plain mixture of experts": lambda: (PlainMoE(DeepSeekV3Config.tiny()), (leaf(2, 5, 32),)),
    "tied": lambda: (Tied(), (torch.randint(0, 11, (2, 3)),)),
    "modules known by name": lambda: (Known(exchanges=False), (leaf(6, 4),)),
    "foreign tags": lambda: (Known(exchanges=True), (leaf(6, 4),)),
    "tied in turns": lambda: (TiedInTurns(), (leaf(5, 4),)),
    **{f.__name__: functools.partial(linear, f) for f in (nested, decorated, in_lanes, with_function)},
}
