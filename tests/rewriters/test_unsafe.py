"""What the unsafe rules write runs: nano-batches in lanes, absent modules, split marks that PyTorch's tracer takes."""

import types

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import pipeline

import annopipe as ap
from rewriters import Settings, rewrite

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x, mask):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, mask=mask)
        h = self.norm(h)
        return self.head(h)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask):
        return self.linear(x).relu() * mask
"""


def changed(code: str, **options: object) -> nn.Module:
    result = rewrite(MODEL.encode(), Settings(select=(code,), unsafe=True, **options))
    assert result.error == ""
    assert result.changed
    return built(result.after.decode())


def built(text: str) -> nn.Module:
    module = types.ModuleType("model")
    exec(text, module.__dict__)
    torch.manual_seed(0)
    model: nn.Module = module.Model()
    return model


@pytest.fixture(name="args")
def _args() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 2, generator=generator), torch.rand(6, 1, generator=generator)


def test_layers_on_nano_batches_compute_the_same_in_lanes(args: tuple[Tensor, Tensor]) -> None:
    model = changed("AP401", nano_split=("mask",), nano_batches=3)
    torch.testing.assert_close(model(*args), built(MODEL)(*args))
    graphs = ap.trace(model, (args[0].requires_grad_(), args[1]))
    assert {row.lane for row in ap.region_table(graphs.forward) if "relu" in row.node.name} == {"0", "1", "2"}


def test_absent_modules_are_passed(args: tuple[Tensor, Tensor]) -> None:
    model, whole = changed("AP402"), built(MODEL)
    torch.testing.assert_close(model(*args), whole(*args), rtol=0, atol=0)
    first, last = changed("AP402"), changed("AP402")
    first.norm = first.head = last.embed = None  # type: ignore[assignment]
    del first.layers[1:], last.layers[:1]
    torch.testing.assert_close(last(first(*args), args[1]), whole(*args), rtol=0, atol=0)


def test_pytorch_cuts_at_the_marks(args: tuple[Tensor, Tensor]) -> None:
    model = changed("AP403", split_at=("2", "head"))
    assert pipeline(model, args).num_stages == 3
