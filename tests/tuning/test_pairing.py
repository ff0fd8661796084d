"""Lanes side by side: never longer than one after the other, never shorter than the busier resource."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.tuning.layers import Layer
from annopipe.tuning.pairing import Lane, lanes_seconds

numbers = st.integers(0, 8).map(float)
layers = st.lists(st.builds(Layer, numbers, numbers, numbers, comm=numbers), min_size=1, max_size=4).map(tuple)
lanes = st.lists(st.builds(Lane, st.sampled_from("FBIW"), layers, st.sampled_from((0.5, 1.0))), min_size=1, max_size=3)


def computing(lane: Lane) -> float:
    return lane.share * math.fsum(
        {"F": layer.F, "I": layer.I, "W": layer.W, "B": layer.I + layer.W}[lane.kind] for layer in lane.layers
    )


def sending(lane: Lane) -> float:
    return lane.share * math.fsum(layer.comm for layer in lane.layers) if lane.kind != "W" else 0.0


@settings(deadline=None, max_examples=40)
@given(lanes)
def test_lanes_take_at_least_the_busier_resource_and_at_most_all_one_after_the_other(several: list[Lane]) -> None:
    together = lanes_seconds(tuple(several))
    compute, send = math.fsum(map(computing, several)), math.fsum(map(sending, several))
    assert together >= max(compute, send) - 1e-9
    assert together <= compute + send + 1e-9


@settings(deadline=None, max_examples=40)
@given(layers)
def test_one_forward_hides_nothing(several: tuple[Layer, ...]) -> None:
    lane = Lane("F", several)
    assert lanes_seconds((lane,)) == pytest.approx(computing(lane) + sending(lane))


@settings(deadline=None, max_examples=40)
@given(layers, st.sampled_from((0.5, 1.0, 2.0)))
def test_a_faster_rank_computes_faster_and_sends_as_slowly(several: tuple[Layer, ...], speed: float) -> None:
    lane = Lane("I", several)
    assert lanes_seconds((lane,), speed) == pytest.approx(computing(lane) / speed + sending(lane))


def test_two_nano_batches_hide_what_one_forward_exposes() -> None:
    layer = Layer(1.0, 1.0, 1.0, comm=1.0)
    whole, half = Lane("F", (layer,) * 4), Lane("F", (layer,) * 4, 0.5)
    assert lanes_seconds((whole,)) == 8.0
    assert lanes_seconds((half, half)) == 4.25


def test_weight_gradients_fill_the_time_in_which_a_backward_only_sends() -> None:
    layer = Layer(1.0, 1.0, 2.0, comm=1.0)
    assert lanes_seconds((Lane("B", (layer, layer)),)) < 2 * (1.0 + 2.0 + 1.0)
