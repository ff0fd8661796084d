"""Layers are measured one after the other, as a pipeline runs them, and stay as they were."""

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.costs import measure_layers


def test_each_layer_gets_what_the_one_before_returns() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x, flags):
            return x * self.weight, flags

    told: list[str] = []
    layers = [Two(), Two(), nn.Bilinear(16, 4, 2)]
    found = measure_layers(layers, torch.ones(8, 16), torch.ones(8, 4), repeat=1, report=told.append)
    assert told == ["layer 1 of 3", "layer 2 of 3", "layer 3 of 3"]
    assert [layer.parameters for layer in found[:2]] == [2 * 16 * 4] * 2
    assert found[0].I == 0.0, "nobody wants the gradient of the input of the model"
    assert found[1].I > 0.0


def test_a_loss_belongs_to_the_last_layer_and_gradients_stay_as_they_were() -> None:
    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    state = torch.get_rng_state()
    target = torch.zeros(4, 8)
    found = measure_layers(layers, torch.ones(4, 8), loss_fn=nn.functional.mse_loss, target=target, repeat=1)
    assert [layer.output for layer in found] == [4 * 8 * 4, 4 * 8 * 4 + 4]
    assert all(parameter.grad is None for layer in layers for parameter in layer.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ap.CostError, match="got no layers"):
        measure_layers([], torch.ones(1))
    with pytest.raises(ap.CostError, match="layer 0 has nothing to train"):
        measure_layers([nn.ReLU(), nn.Linear(4, 4)], torch.ones(2, 4))
