"""An unmodified Qwen3-MoE of transformers traces, splits, multiplexes and reorders with equal results."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import annopipe as ap
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.reordering import reorder
from annopipe.graphs.stage_graph import body
from tests.graphs.helpers import assert_same, check_against_eager
from tests.graphs.modules import leaf, plain

qwen = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")


@pytest.fixture(scope="module")
def config() -> Any:
    return qwen.Qwen3MoeConfig(
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=3,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        vocab_size=32,
        attn_implementation="eager",
    )


def route_to(block: nn.Module, experts: list[int]) -> None:
    """Make the router prefer the given experts."""
    with torch.no_grad():
        block.gate.weight.normal_()
        block.gate.weight[experts] *= 20


def random_order(stage: ap.StageGraph, rng: random.Random) -> list[fx.Node]:
    nodes = body(stage.graph)
    missing = [set(earlier) for earlier in predecessors(nodes)]
    order: list[int] = []
    ready = {i for i, earlier in enumerate(missing) if not earlier}
    users: dict[int, list[int]] = {}
    for i, earlier in enumerate(missing):
        for j in earlier:
            users.setdefault(j, []).append(i)
    while ready:
        chosen = rng.choice(sorted(ready))
        ready.remove(chosen)
        order.append(chosen)
        for i in users.get(chosen, ()):
            missing[i].discard(chosen)
            if not missing[i]:
                ready.add(i)
    return [nodes[i] for i in order]


def test_the_expert_block_is_equal_for_every_routing(config: Any) -> None:
    block = qwen.Qwen3MoeSparseMoeBlock(config)
    graphs = ap.trace(block, (leaf(2, 5, 16),))
    for experts in ([0, 1, 2], [0], [1, 2]):
        route_to(block, experts)
        check_against_eager(block, (leaf(2, 5, 16),), graphs=graphs, idle=True)


def test_a_decoder_layer_multiplexes_and_reorders_with_equal_results(config: Any) -> None:
    layer = qwen.Qwen3MoeDecoderLayer(config, 0)
    rotary = qwen.Qwen3MoeRotaryEmbedding(config)
    positions: tuple[Tensor, Tensor] = rotary(plain(2, 5, 16), torch.arange(5)[None])
    graphs = ap.trace(layer, (leaf(2, 5, 16),), {"position_embeddings": positions})
    assert graphs.backward is not None
    route_to(layer.mlp, [1])
    check_against_eager(layer, (leaf(2, 5, 16),), {"position_embeddings": positions}, graphs=graphs, idle=True)

    bound = graphs.bind(layer)
    first, second = ({**bound, **graphs.bind_inputs(plain(2, 5, 16), position_embeddings=positions)} for _ in range(2))
    tangent = plain(2, 5, 16)
    backward = {**first, **graphs.forward(first), "tangent.output": tangent}
    expected = {**{f"B.{k}": v for k, v in graphs.backward(backward).items()}}
    expected |= {f"F.{k}": v for k, v in graphs.forward(second).items()}
    values = {**{f"B.{k}": v for k, v in backward.items()}, **{f"F.{k}": v for k, v in second.items()}}
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    for seed in range(3):
        found = reorder(both, random_order(both, random.Random(seed)))(values)
        assert_same({name: found[name] for name in expected}, expected)


def test_a_whole_language_model_is_equal_in_logits_and_gradients(config: Any) -> None:
    model = qwen.Qwen3MoeForCausalLM(config)
    graphs = check_against_eager(model, (torch.randint(0, 32, (2, 5)),), {"use_cache": False}, idle=True)
    assert "output.logits" in {port.name for port in graphs.forward.outputs}


def test_a_cache_of_tensors_as_output_is_refused(config: Any) -> None:
    model = qwen.Qwen3MoeForCausalLM(config)
    with pytest.raises(
        ap.CaptureError, match="output.past_key_values is a DynamicCache and holds a tensor or a module"
    ):
        ap.trace(model, (torch.randint(0, 32, (2, 5)),))


def test_every_node_of_the_layer_has_a_region_of_the_tags_around_it(config: Any) -> None:
    class Tagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = qwen.Qwen3MoeSparseMoeBlock(config)

        def forward(self, x: Tensor) -> Tensor:
            with ap.region("moe"):
                return self.block(x)[0]

    graphs = ap.trace(Tagged(), (leaf(2, 5, 16),))
    assert graphs.backward is not None
    for graph in (graphs.forward, graphs.backward):
        assert {row.region for row in ap.region_table(graph)} == {"moe"}
