"""The packing bound beside all ways to put a few weights into bins."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.tuning.packing import packed_time

weights = st.lists(st.sampled_from((1.0, 1.5, 2.0, 3.7)), min_size=1, max_size=6)
bins = st.lists(st.tuples(st.sampled_from((0.0, 0.5, 2.0)), st.sampled_from((1.0, 0.8))), min_size=1, max_size=3)


def _shortest(weights: list[float], bins: list[tuple[float, float]]) -> float:
    """Of all ways; a bin that nothing is put into is never late."""
    best = float("inf")
    for chosen in itertools.product(range(len(bins)), repeat=len(weights)):
        loads = [0.0] * len(bins)
        for weight, place in zip(weights, chosen, strict=True):
            loads[place] += weight
        best = min(best, max(at + load / speed for (at, speed), load in zip(bins, loads, strict=True) if load))
    return best


@settings(max_examples=150, deadline=None)
@given(weights, bins)
def test_few_weights_are_packed_as_well_as_they_can_be(weights: list[float], bins: list[tuple[float, float]]) -> None:
    late, speeds = [at for at, _ in bins], [speed for _, speed in bins]
    assert packed_time(weights, late, speeds) == pytest.approx(_shortest(weights, bins), rel=1e-8)


def test_many_different_weights_are_a_bound_that_is_quickly_found() -> None:
    weights = [1.0 + index / 97 for index in range(60)]
    found = packed_time(weights, [0.0] * 16, [1.0] * 16)
    assert sum(weights) / 16 * 0.8 < found <= sum(weights) / 16 + max(weights)


def test_nothing_takes_no_time() -> None:
    assert packed_time([0.0], [0.0], [1.0]) == 0.0
