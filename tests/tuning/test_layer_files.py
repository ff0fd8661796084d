"""Layers as tables: what is written is read again, and what is no layer is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.toml_files import parse_toml, toml_value
from annopipe.tuning.layer_files import layer_from, layer_table
from annopipe.tuning.layers import Layer, Piece, Pieces, Recompute

times = st.floats(0.0, 1e3)
pieces = st.lists(st.builds(Piece, times, times, times, times), min_size=1, max_size=3).map(tuple)
layers = st.builds(
    Layer,
    times,
    times,
    times,
    activation=times,
    comm=times,
    parameters=times,
    recompute=st.none() | st.builds(Recompute, times, times, st.just(()) | pieces, st.none() | times),
    kept_for_weight=st.none() | times,
    message=st.none() | times,
    reduce=times,
    pieces=st.none() | st.builds(Pieces, pieces, pieces),
)


@settings(deadline=None, max_examples=60)
@given(layers)
def test_what_is_written_is_read_again(layer: Layer) -> None:
    assert layer_from(parse_toml(f"layer = {toml_value(layer_table(layer))}")["layer"], "here") == layer


def test_pieces_say_what_a_layer_takes() -> None:
    both = Pieces((Piece(1.0, beside=0.5, comm=2.0), Piece(1.0)), (Piece(2.0, weight=1.5, comm=1.0), Piece(1.0)))
    layer = Layer.of_pieces(both, activation=3.0)
    assert (layer.F, layer.I, layer.W, layer.comm) == (2.5, 3.0, 1.5, 1.5)


def test_a_layer_that_computes_again_has_pieces_that_do() -> None:
    pieces = Pieces((Piece(1.0),), (Piece(1.0, comm=1.0), Piece(2.0, weight=1.0)))
    longer = (Piece(1.5, comm=1.0), Piece(2.0, weight=1.0))
    for again in (Recompute(0.5, 0.5), Recompute(0.5, 0.5, longer)):
        layer = Layer.of_pieces(pieces, activation=1.0, recompute=again).recomputed()
        assert layer.pieces == Pieces(pieces.forward, longer)
        assert layer.pieces.times == (layer.F, layer.I, layer.W)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"speed": 1.0}, "here has no field 'speed'"),
        ({"pieces": 1.0}, "here, pieces is 1.0: give a table"),
        ({"pieces": {"forward": [[1.0]]}}, "here, pieces: give both forward and backward"),
        ({"pieces": {"forward": [], "backward": [[-1.0]]}}, "backward is .*: give lists of times, not negative"),
        ({"pieces": {"forward": [1.0], "backward": []}}, "forward is .*: give lists of times"),
        ({"recompute": {"saves": 1.0}}, "here, recompute: give both saves and costs"),
    ],
)
def test_what_is_no_layer_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        layer_from({"F": 1.0, "I": 1.0, "W": 1.0, **more}, "here")
