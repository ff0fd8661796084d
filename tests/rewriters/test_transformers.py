"""Real Mixtral and Qwen3-MoE classes of the installed transformers, at tiny sizes, before and after they are tagged."""

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from rewriters import FileResult, Settings, rewrite

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "attn_implementation": "eager",
}
BLOCKS = {
    "mixtral": ("Mixtral", {"num_local_experts": 3}),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 3, "moe_intermediate_size": 8}),
}


@pytest.fixture(name="model", scope="module", params=sorted(BLOCKS))
def _model(request: pytest.FixtureRequest) -> tuple[str, types.ModuleType, types.ModuleType, FileResult]:
    """A model's prefix, its module, and the same module tagged."""
    name = request.param
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    assert module.__file__ is not None
    result = rewrite(Path(module.__file__).read_bytes(), Settings(include_generated=True))
    assert result.error == ""
    tagged = types.ModuleType(f"{module.__name__}_tagged")
    tagged.__package__, tagged.__file__ = module.__package__, module.__file__
    sys.modules[tagged.__name__] = tagged  # transformers looks up the module of a class
    exec(compile(result.after, module.__file__, "exec"), tagged.__dict__)
    return BLOCKS[name][0], module, tagged, result


def config(prefix: str) -> Any:
    more = next(options for p, options in BLOCKS.values() if p == prefix)
    return getattr(transformers, f"{prefix}Config")(**SIZES, **more)


def built(module: types.ModuleType, prefix: str, part: str, *args: Any) -> nn.Module:
    """A part with the same random parameters whichever module it is of; sizes of parameters that nobody initialises."""
    torch.manual_seed(0)
    made: nn.Module = getattr(module, f"{prefix}{part}")(config(prefix), *args)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return made


class Layer(nn.Module):
    """A decoder layer on hidden states alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        position = torch.ones(1, x.shape[1], 8), torch.zeros(1, x.shape[1], 8)
        out = self.layer(x, position_embeddings=position)
        return out[0] if isinstance(out, tuple) else out


def results(module: nn.Module) -> list[Any]:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    out.square().sum().backward()
    return [out, x.grad, [parameter.grad for parameter in module.parameters()]]


def test_a_layer_computes_the_same_bits(model: Any) -> None:
    prefix, module, tagged, _ = model
    before, after = (results(Layer(built(m, prefix, "DecoderLayer", 0))) for m in (module, tagged))
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_the_nodes_of_a_layer_are_in_their_regions(model: Any) -> None:
    prefix, _, tagged, result = model
    layer = Layer(built(tagged, prefix, "DecoderLayer", 0))
    graphs = ap.trace(layer, (torch.randn(2, 5, 16).requires_grad_(),))
    rows = [row for row in ap.region_table(graphs.forward) if row.rule == "tag"]
    assert {row.region for row in rows} == {"attention", "router", "experts"}
    regions = {word: {row.region for row in rows if word in row.node.name} for word in ("topk", "silu", "index_add")}
    assert regions["topk"] == {"router"} or regions["topk"] <= {"router", "experts"}
    assert regions["silu"] == {"experts"}
    assert regions["index_add"] <= {"experts"}
    assert sum(row.region == "attention" and "softmax" in row.node.name for row in rows) == 1
    assert {site.role for site in result.sites} == {"attention", "router", "experts"}
