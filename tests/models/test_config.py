"""Published sizes give the published numbers of parameters; sizes that cannot be are refused."""

import dataclasses

import pytest

from annopipe.errors import GraphError
from annopipe.models import (
    DeepSeekV3Config,
    DeepSeekV3Stage,
    GPTConfig,
    GPTStage,
    MixtralConfig,
    MixtralStage,
    Qwen3MoEConfig,
    Qwen3MoEStage,
)

TINY = DeepSeekV3Config.tiny()


@pytest.mark.parametrize(
    ("stage", "config", "total", "active"),
    [
        (DeepSeekV3Stage, DeepSeekV3Config.v3_671b(), 671.0e9, 37.6e9),
        (DeepSeekV3Stage, DeepSeekV3Config.v3_16b(), 15.7e9, 2.66e9),  # the report's 2.4e9 leaves the embedding out
        (DeepSeekV3Stage, DeepSeekV3Config.small(), 7.2e6, None),
        (DeepSeekV3Stage, TINY, 38.5e3, None),
        (MixtralStage, MixtralConfig.m8x7b(), 46.7e9, 12.9e9),
        (MixtralStage, MixtralConfig.m8x22b(), 141e9, 39e9),
        (MixtralStage, MixtralConfig.tiny(), 60e3, None),
        (Qwen3MoEStage, Qwen3MoEConfig.a3b_30b(), 30.5e9, 3.3e9),
        (Qwen3MoEStage, Qwen3MoEConfig.a22b_235b(), 235e9, 22e9),
        (Qwen3MoEStage, Qwen3MoEConfig.tiny(), 64.7e3, None),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_sizes_give_the_published_number_of_parameters(stage, config, total, active):
    model = stage(config, embed=True, head=True, device="meta")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == pytest.approx(total, rel=0.01)
    if active:
        routed = sum(size for name, size in sizes.items() if ".experts." in name)
        assert sum(sizes.values()) - routed * (1 - config.top_k / config.experts) == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (GPTConfig.gpt2(), 124.4e6),
        (GPTConfig.gpt2_medium(), 354.8e6),
        (GPTConfig.gpt2_large(), 774.0e6),
        (GPTConfig.gpt2_xl(), 1557.6e6),
        (GPTConfig.gpt3_175b(), 174.6e9),
    ],
)
def test_sizes_of_gpt_give_the_published_number_of_parameters(config, total):
    model = GPTStage(config, embed=True, head=True, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(total, rel=0.001)


def test_first_layers_are_dense():
    config = DeepSeekV3Config.v3_671b()
    assert [config.has_experts(layer) for layer in range(5)] == [False, False, False, True, True]
    assert config.qk_head_dim == 192
    assert config.experts_per_group == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "hidden is 0; it must be an integer of at least 1"),
        ({"heads": 2.0}, "heads is 2.0; it must be an integer of at least 1"),
        ({"layers": True}, "layers is True; it must be an integer"),
        ({"shared_experts": -1}, "shared_experts is -1; it must be an integer of at least 0"),
        ({"q_lora_rank": 0}, "q_lora_rank is 0; it must be an integer of at least 1"),
        ({"rms_eps": 0.0}, "rms_eps is 0.0; it must be a positive number"),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4'; it must be a positive number"),
        ({"dense_layers": 3}, "dense_layers is 3, more than the 2 layers"),
        ({"qk_rope_head_dim": 3}, "qk_rope_head_dim is 3; rotary embedding turns pairs, so it must be even"),
        ({"v_head_dim": 13}, "v_head_dim is 13; values are padded to the width of queries, 12"),
        ({"expert_groups": 3}, "8 experts do not form 3 equal groups"),
        ({"groups_kept": 5}, "groups_kept is 5, more than the 4 groups"),
        ({"top_k": 5}, "top_k is 5, but 2 groups of 2 have only 4 experts"),
        ({"scoring": "tanh"}, "scoring is 'tanh'; it must be one of sigmoid, softmax"),
    ],
    ids=str,
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(GraphError, match=f"DeepSeekV3Config: {message}"):
        dataclasses.replace(TINY, **change)


def test_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TINY.hidden = 1  # type: ignore[misc]
