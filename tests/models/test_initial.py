"""First values depend on seed and name only."""

import dataclasses

import torch

from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.models.experts import Experts
from annopipe.models.initial import initialise

CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), dense_layers=1, layers=3)


def test_stages_hold_slices_of_the_whole_model():
    whole = DeepSeekV3Stage(CONFIG, embed=True, head=True, seed=5).state_dict()
    first = DeepSeekV3Stage(CONFIG, range(2), embed=True, seed=5).state_dict()
    last = DeepSeekV3Stage(CONFIG, range(2, 3), head=True, seed=5).state_dict()
    assert set(whole) == set(first) | set(last)
    assert all(torch.equal(value, whole[name]) for part in (first, last) for name, value in part.items())


def test_experts_hold_slices_of_all_experts():
    everything, slice_ = Experts(CONFIG, 0, 8), Experts(CONFIG, 6, 2)
    initialise(everything, 0.1, seed=0)
    initialise(slice_, 0.1, seed=0)
    assert torch.equal(slice_.gate_up, everything.gate_up[6:])
    assert torch.equal(slice_.down, everything.down[6:])
    assert not torch.equal(everything.down[0], everything.down[1])


def test_seed_changes_every_weight_but_normalisation():
    one, two = (DeepSeekV3Stage(CONFIG, seed=seed).named_parameters() for seed in (1, 2))
    for (name, a), (_, b) in zip(one, two, strict=True):
        assert torch.equal(a, b) == name.endswith("norm.weight")


def test_standard_deviation_is_the_configured_one():
    weight = DeepSeekV3Stage(CONFIG, embed=True).get_parameter("embed.weight")
    assert abs(weight.std().item() / CONFIG.init_std - 1) < 0.1


def test_dtypes_hold_the_same_values_up_to_rounding():
    wide = DeepSeekV3Stage(CONFIG, dtype=torch.float64).state_dict()
    narrow = DeepSeekV3Stage(CONFIG, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(value.to(narrow[name].dtype), narrow[name]) for name, value in wide.items())


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    DeepSeekV3Stage(CONFIG, embed=True, head=True)
    assert torch.equal(torch.get_rng_state(), before)
