"""Blocks and stages: against transformers' own layer, cut into stages, and their region paths."""

import dataclasses

import pytest
import torch
from torch._subclasses import FakeTensorMode

from annopipe.errors import GraphError
from annopipe.models import Block, DeepSeekV3Config, DeepSeekV3Stage
from tests.models import joint_graph

TINY = DeepSeekV3Config.tiny()
CONFIG = dataclasses.replace(TINY, dense_layers=1, layers=3)


def transformers_layer(block):
    """The decoder layer of transformers with the weights of ``block``, and its rotary embedding."""
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config

    c = block.attention.config
    config = DeepseekV3Config(
        hidden_size=c.hidden,
        num_attention_heads=c.heads,
        num_key_value_heads=c.heads,
        q_lora_rank=c.q_lora_rank,
        kv_lora_rank=c.kv_lora_rank,
        qk_nope_head_dim=c.qk_nope_head_dim,
        qk_rope_head_dim=c.qk_rope_head_dim,
        v_head_dim=c.v_head_dim,
        moe_intermediate_size=c.moe_intermediate,
        n_routed_experts=c.experts,
        n_shared_experts=c.shared_experts,
        num_experts_per_tok=c.top_k,
        n_group=c.expert_groups,
        topk_group=c.groups_kept,
        routed_scaling_factor=c.routed_scaling,
        first_k_dense_replace=0,
        rms_norm_eps=c.rms_eps,
        attn_implementation="eager",
    )
    layer = theirs.DeepseekV3DecoderLayer(config, layer_idx=0)
    layer.load_state_dict(translated(block))
    return layer, theirs.DeepseekV3RotaryEmbedding(config)


def translated(block):
    """The weights of a block under the names that transformers uses."""
    c = block.attention.config
    feed = block.feed
    names = {
        "input_layernorm.weight": block.attention_norm.weight,
        "post_attention_layernorm.weight": block.feed_norm.weight,
        "self_attn.q_a_proj.weight": block.attention.q_a.weight,
        "self_attn.q_a_layernorm.weight": block.attention.q_norm.weight,
        "self_attn.q_b_proj.weight": block.attention.q_b.weight,
        "self_attn.kv_a_proj_with_mqa.weight": block.attention.kv_a.weight,
        "self_attn.kv_a_layernorm.weight": block.attention.kv_norm.weight,
        "self_attn.kv_b_proj.weight": block.attention.kv_b.weight,
        "self_attn.o_proj.weight": block.attention.out.weight,
        "mlp.gate.weight": feed.router.weight,
        "mlp.gate.e_score_correction_bias": feed.router.selection_bias,
        "mlp.shared_experts.gate_proj.weight": feed.shared.gate.weight,
        "mlp.shared_experts.up_proj.weight": feed.shared.up.weight,
        "mlp.shared_experts.down_proj.weight": feed.shared.down.weight,
    }
    for expert in range(c.experts):
        gate, up = feed.experts.gate_up[expert].chunk(2, dim=-1)
        names[f"mlp.experts.{expert}.gate_proj.weight"] = gate.t()
        names[f"mlp.experts.{expert}.up_proj.weight"] = up.t()
        names[f"mlp.experts.{expert}.down_proj.weight"] = feed.experts.down[expert].t()
    return names


def test_block_equals_the_layer_of_transformers():
    block = DeepSeekV3Stage(TINY, seed=2).get_submodule("blocks.0")
    block.get_buffer("feed.router.selection_bias").copy_(torch.linspace(0, 0.3, TINY.experts))
    layer, rotary = transformers_layer(block)
    x = torch.randn(2, 7, TINY.hidden)
    positions = torch.arange(7).unsqueeze(0)
    mask = torch.full((7, 7), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        expected = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=rotary(x, positions))
        torch.testing.assert_close(block(x), expected, rtol=1e-5, atol=1e-5)


def test_stages_in_a_row_equal_the_whole_model():
    tokens = torch.randint(0, CONFIG.vocabulary, (2, 5))
    whole = DeepSeekV3Stage(CONFIG, embed=True, head=True)
    first, last = DeepSeekV3Stage(CONFIG, range(2), embed=True), DeepSeekV3Stage(CONFIG, [2], head=True)
    logits = whole(tokens)
    assert logits.shape == (2, 5, CONFIG.vocabulary)
    assert torch.equal(last(first(tokens)), logits)


def test_region_paths_name_the_block_of_the_whole_model():
    stage = DeepSeekV3Stage(CONFIG, range(2), head=True)
    graph = joint_graph.trace(stage, torch.randn(1, 3, CONFIG.hidden)).graph
    moe = {f"block1/moe/{name}" for name in ("router", "experts", "shared", "unpermute")}
    expected = {"block0/attention", "block0/mlp", "block1/attention", "block1/moe", "head", *moe}
    for side in ("forward", "backward"):
        assert {joint_graph.region(n) for n in graph.nodes if joint_graph.side(n) == side} - {""} == expected


def test_double_precision_and_half_precision_run():
    for dtype in (torch.float64, torch.bfloat16):
        y = DeepSeekV3Stage(CONFIG, dtype=dtype)(torch.randn(1, 3, CONFIG.hidden, dtype=dtype))
        assert y.dtype == dtype
        assert y.isfinite().all()


def test_meta_stage_is_filled_later():
    stage = DeepSeekV3Stage(CONFIG, device="meta")
    assert all(p.is_meta for p in stage.parameters())
    stage.to_empty(device="cpu")
    stage.reset_parameters(seed=0)
    expected = DeepSeekV3Stage(CONFIG, seed=0).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in stage.state_dict().items())


def test_stage_is_built_without_memory_under_fake_tensors():
    with FakeTensorMode():
        stage = DeepSeekV3Stage(DeepSeekV3Config.v3_671b(), [4])
        assert stage(torch.empty(1, 8, 7168)).shape == (1, 8, 7168)


@pytest.mark.parametrize("layer", [-1, 3])
def test_layer_that_the_model_does_not_have_is_refused(layer):
    with pytest.raises(GraphError, match=rf"layer {layer} is not one of the model's 3 \(0 first\)"):
        DeepSeekV3Stage(CONFIG, [layer])


def test_dense_block_has_no_experts():
    names = [name for name, _ in Block(CONFIG, 0).named_parameters()]
    assert not any("experts" in name or "router" in name for name in names)
