"""Mixtral- and Qwen3-style models: against the models of transformers in value and gradient, and cut into stages."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from annopipe.errors import GraphError
from annopipe.models.grouped_query import GroupedQueryAttention
from tests.models import cases, joint_graph

MODELS = ("mixtral", "qwen3")


def theirs(config: Any, model: str) -> nn.Module:
    """The causal language model of transformers with these sizes."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_experts_per_tok": config.top_k,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    if model == "mixtral":
        sizes |= {"num_local_experts": config.experts, "intermediate_size": config.moe_intermediate}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, sliding_window=None))
    sizes |= {"num_experts": config.experts, "moe_intermediate_size": config.moe_intermediate}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, norm_topk_prob=True))


def translated(values: dict[str, Tensor], model: str) -> dict[str, Tensor]:
    """Parameters or gradients of ours under the names, and in the layout, that transformers uses."""
    feed = "block_sparse_moe" if model == "mixtral" else "mlp"
    gate, up, down = ("w1", "w3", "w2") if model == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    renamed = {
        "attention_norm": "input_layernorm",
        "feed_norm": "post_attention_layernorm",
        **{f"attention.{name}": f"self_attn.{name}_proj" for name in "qkv"},
        **{f"attention.{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
        "attention.out": "self_attn.o_proj",
        "feed.router": f"{feed}.gate",
    }
    outer = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    found = {}
    for name, value in values.items():
        if not name.startswith("blocks."):
            found[outer.get(name, "lm_head.weight")] = value
            continue
        _, layer, inner = name.split(".", 2)
        prefix = f"model.layers.{layer}"
        if inner == "feed.experts.gate_up":
            for expert, (left, right) in enumerate(matrix.chunk(2, dim=1) for matrix in value):
                found[f"{prefix}.{feed}.experts.{expert}.{gate}.weight"] = left.t()
                found[f"{prefix}.{feed}.experts.{expert}.{up}.weight"] = right.t()
        elif inner == "feed.experts.down":
            for expert, matrix in enumerate(value):
                found[f"{prefix}.{feed}.experts.{expert}.{down}.weight"] = matrix.t()
        else:
            found[f"{prefix}.{renamed[inner.removesuffix('.weight')]}.weight"] = value
    return found


def varied(stage: nn.Module) -> nn.Module:
    """The stage with weights of normalisations other than one."""
    for part in stage.modules():
        if isinstance(part, nn.RMSNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
    return stage


@pytest.mark.parametrize("model", MODELS)
def test_logits_and_gradients_equal_those_of_transformers(model: str) -> None:
    torch.manual_seed(0)
    ours = varied(cases.moe_stage(model, layers=2, embed=True, head=True))
    reference = theirs(ours.config, model)
    reference.load_state_dict(translated(dict(ours.named_parameters()), model))
    tokens = torch.randint(0, ours.config.vocabulary, (2, 7))
    logits, expected = ours(tokens), reference(tokens, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(logits)
    logits.backward(grad)
    expected.backward(grad)
    gradients = translated(cases.gradients(ours), model)
    for name, parameter in reference.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        scale = max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-4, atol=1e-4 * scale, msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_stages_in_a_row_equal_the_whole_model(model: str) -> None:
    whole = cases.moe_stage(model, "skewed", layers=3, embed=True, head=True)
    first, last = type(whole)(whole.config, range(2), embed=True), type(whole)(whole.config, [2], head=True)
    tokens = torch.randint(0, whole.config.vocabulary, (2, 5))
    assert torch.equal(last(first(tokens)), whole(tokens))


@pytest.mark.parametrize("model", MODELS)
def test_region_paths_are_those_of_the_other_models(model: str) -> None:
    stage = cases.moe_stage(model, layers=2, head=True)
    graph = joint_graph.trace(stage, torch.randn(1, 3, cases.HIDDEN)).graph
    inner = ("attention", "moe", "moe/router", "moe/experts", "moe/unpermute")
    expected = {f"block{number}/{name}" for number in (0, 1) for name in inner} | {"head"}
    for side in ("forward", "backward"):
        assert {joint_graph.region(n) for n in graph.nodes if joint_graph.side(n) == side} - {""} == expected


@pytest.mark.parametrize("model", MODELS)
def test_fused_attention_saves_no_scores_and_repeats_no_keys(model: str) -> None:
    graph = joint_graph.trace(GroupedQueryAttention(cases.CONFIGS[model]), torch.randn(1, 33, cases.HIDDEN)).graph
    shapes = [n.meta["val"].shape for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert not any(shape[-2:] == (33, 33) for shape in shapes)
    (attention,) = [n for n in graph.nodes if "flash_attention_for_cpu.default" in joint_graph.target(n)]
    assert attention.args[1].meta["val"].shape[1] == cases.CONFIGS[model].kv_heads


@pytest.mark.parametrize("model", MODELS)
def test_half_precision_stays_half_precision(model: str) -> None:
    y = cases.moe_stage(model, "skewed", dtype=torch.bfloat16)(torch.randn(1, 3, cases.HIDDEN, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 0}, "kv_heads is 0; it must be an integer of at least 1"),
        ({"kv_heads": 3}, "4 heads cannot share 3 kv_heads equally"),
        ({"head_dim": 7}, "head_dim is 7; rotary embedding turns pairs, so it must be even"),
        ({"top_k": 0}, "top_k is 0; it must be an integer of at least 1"),
    ],
    ids=str,
)
def test_impossible_sizes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(GraphError, match=f"MixtralConfig: {message}"):
        dataclasses.replace(cases.CONFIGS["mixtral"], **change)


def test_a_layer_that_the_model_does_not_have_is_refused_with_the_name_of_its_class() -> None:
    with pytest.raises(GraphError, match=r"Qwen3MoEStage: layer 2 is not one of the model's 2 \(0 first\)"):
        cases.STAGES["qwen3"](cases.CONFIGS["qwen3"], [2])
    with pytest.raises(GraphError, match=r"MixtralStage: layers \[1, 1\] name a block twice"):
        cases.STAGES["mixtral"](cases.CONFIGS["mixtral"], [1, 1])
