"""The dense GPT: against GPT-2 of transformers in value and gradient, its tied head, and cut into stages."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from annopipe.errors import GraphError
from annopipe.models import GPTConfig, GPTStage
from tests.graphs.helpers import check_against_eager
from tests.models import cases, joint_graph

TINY = GPTConfig.tiny()
UNTIED = dataclasses.replace(TINY, tied_head=False)
TOKENS = torch.randint(0, TINY.vocabulary, (2, 7), generator=torch.Generator().manual_seed(0))


def theirs(config: GPTConfig) -> nn.Module:
    """GPT-2 of transformers with these sizes."""
    transformers = pytest.importorskip("transformers")
    sizes = transformers.GPT2Config(
        vocab_size=config.vocabulary,
        n_positions=config.context,
        n_embd=config.hidden,
        n_layer=config.layers,
        n_head=config.heads,
        n_inner=config.intermediate,
        tie_word_embeddings=config.tied_head,
        attn_implementation="eager",
    )
    model: nn.Module = transformers.GPT2LMHeadModel(sizes).eval()  # eval: it has dropout
    return model


def translated(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters or gradients of ours under their names; their linear layers keep the weight transposed."""
    names = {"embed.tokens": "wte", "embed.positions": "wpe", "norm": "ln_f"}
    inner = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "feed_norm": "ln_2",
        "feed.up": "mlp.c_fc",
        "feed.down": "mlp.c_proj",
    }
    found = {}
    for name, value in values.items():
        module, _, kind = name.rpartition(".")
        if module.startswith("blocks."):
            _, layer, part = module.split(".", 2)
            transposed = value.t() if value.dim() == 2 else value
            found[f"transformer.h.{layer}.{inner[part]}.{kind}"] = transposed
        else:
            found[f"transformer.{names[module]}.{kind}" if module in names else f"lm_head.{kind}"] = value
    return found


def varied(stage: GPTStage) -> GPTStage:
    """The stage with biases that are not zero."""
    torch.manual_seed(0)
    for name, parameter in stage.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
    return stage


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_logits_and_gradients_equal_those_of_transformers(config: GPTConfig) -> None:
    ours, reference = varied(GPTStage(config, embed=True, head=True)), theirs(config)
    missing = reference.load_state_dict(translated(dict(ours.named_parameters())), strict=False).missing_keys
    assert missing == (["lm_head.weight"] if config.tied_head else [])
    logits, expected = ours(TOKENS), reference(TOKENS, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(logits)
    logits.backward(grad)
    expected.backward(grad)
    gradients = translated(cases.gradients(ours))
    assert set(gradients) == {name for name, _ in reference.named_parameters()}
    for name, parameter in reference.named_parameters():
        scale = max(1.0, parameter.grad.abs().max().item())
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-4 * scale, msg=name)


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_stages_in_a_row_equal_the_whole_model(config: GPTConfig) -> None:
    whole = GPTStage(config, embed=True, head=True)
    first, last = GPTStage(config, [0], embed=True), GPTStage(config, [1], head=True)
    assert torch.equal(last(first(TOKENS)), whole(TOKENS))
    assert torch.equal(last.head.weight, first.embed.tokens.weight) == config.tied_head


def test_a_tied_head_is_one_parameter_also_when_filled_later() -> None:
    stage = GPTStage(TINY, embed=True, head=True, device="meta")
    assert stage.head.weight is stage.embed.tokens.weight
    assert "head.weight" not in dict(stage.named_parameters())
    stage.to_empty(device="cpu")
    stage.reset_parameters()
    assert stage.head.weight is stage.embed.tokens.weight
    expected = GPTStage(TINY, embed=True, head=True).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in stage.state_dict().items())


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_graphs_are_bitwise_equal_to_eager(config: GPTConfig) -> None:
    check_against_eager(varied(GPTStage(config, embed=True, head=True)), (TOKENS,))


def test_region_paths_are_those_of_the_other_models() -> None:
    graph = joint_graph.trace(GPTStage(TINY, head=True), torch.randn(1, 3, TINY.hidden)).graph
    expected = {f"block{number}/{name}" for number in (0, 1) for name in ("attention", "mlp")} | {"head"}
    for side in ("forward", "backward"):
        assert {joint_graph.region(n) for n in graph.nodes if joint_graph.side(n) == side} - {""} == expected


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(GraphError, match="33 tokens in a sequence, but the config has 32 positions"):
        GPTStage(TINY, embed=True)(torch.zeros(1, 33, dtype=torch.int64))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(GraphError, match="GPTConfig: context is 0; it must be an integer of at least 1"):
        dataclasses.replace(TINY, context=0)
    with pytest.raises(GraphError, match="GPTConfig: norm_eps is 0; it must be a positive number"):
        dataclasses.replace(TINY, norm_eps=0)
    with pytest.raises(GraphError, match="GPTConfig: a width of 32 cannot be shared equally by 5 heads"):
        dataclasses.replace(TINY, heads=5)
