"""Rotary embedding: what scores depend on, and that the two ways of pairing values differ in their order only."""

import pytest
import torch

from annopipe.models.rotary import rotate, rotate_halves, turns


@pytest.mark.parametrize("turn", [rotate, rotate_halves])
def test_score_depends_on_the_distance_of_two_positions_only(turn):
    x = torch.randn(2, 1, 4, dtype=torch.float64)
    phase = torch.arange(10, dtype=torch.float64).unsqueeze(1) * torch.tensor([1.0, 0.01], dtype=torch.float64)
    q, k = (turn(v.expand(10, 4), phase.cos(), phase.sin()) for v in x)
    scores = q @ k.t()
    torch.testing.assert_close(scores[2:, 2:], scores[:-2, :-2])


def test_pairs_of_halves_are_pairs_of_neighbours_in_another_order():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    cos, sin = turns(5, 8, 10000.0, x)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    assert torch.equal(rotate_halves(x, cos, sin)[..., order], rotate(x[..., order], cos, sin))


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_angles_are_at_least_single_precision_and_right_far_out(dtype, expected):
    cos, _ = turns(100_001, 4, 10000.0, torch.zeros(1, dtype=dtype))
    assert cos.dtype == expected
    assert cos[100_000].tolist() == pytest.approx([-0.99936079, 0.56237908], abs=1e-7)
