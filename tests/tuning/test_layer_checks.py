"""Layers whose numbers cannot be are refused, and the number is named."""

import math
from dataclasses import replace
from typing import Any

import pytest

from annopipe.tuning.layer_checks import layer_problems
from annopipe.tuning.layers import Layer, Piece, Pieces, Recompute

LAYER = Layer(1.0, 1.0, 1.0, activation=1.0)
PIECES = Layer.of_pieces(Pieces((Piece(1.0, comm=0.5), Piece(1.0)), (Piece(2.0, weight=1.0),)), activation=1.0)
WRONG: tuple[tuple[Layer, dict[str, Any], str], ...] = (
    (LAYER, {"W": True}, "W of it is True: give a number"),
    (LAYER, {"parameters": 1e61}, "parameters of it is 1e+61: give a number that is finite and not negative, at most"),
    (LAYER, {"message": math.nan}, "message of it is nan"),
    (LAYER, {"recompute": 0.5}, "recompute of it is 0.5: give an annopipe.Recompute, or None"),
    (LAYER, {"recompute": Recompute(0.5, 0.5, kept_for_weight=-1.0)}, "recompute.kept_for_weight of it is -1.0"),
    (LAYER, {"recompute": Recompute(0.5, 0.5, backward=[Piece(1.0)])}, "recompute.backward of it is [Piece"),  # type: ignore[arg-type]
    (LAYER, {"pieces": 5}, "pieces of it is 5: give an annopipe.Pieces, or None"),
    (PIECES, {"pieces": Pieces((Piece(math.inf),), ())}, "pieces.forward of it has Piece(compute=inf"),
    (PIECES, {"pieces": Pieces((1.0,), ())}, "pieces.forward of it is (1.0,): give a tuple of annopipe.Piece"),  # type: ignore[arg-type]
    (PIECES, {"F": 3.0}, "F of it is 3, and its pieces add up to 2: give equal times"),
    (PIECES, {"comm": 0.5}, "comm of it is 0.5, and its pieces add up to 0.25"),
)


@pytest.mark.parametrize(("layer", "changes", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_what_is_no_layer_is_said(layer: Layer, changes: dict[str, Any], message: str) -> None:
    assert next(layer_problems(replace(layer, **changes), "it")).startswith(message)


@pytest.mark.parametrize("layer", [LAYER, PIECES, replace(LAYER, F=0, recompute=Recompute(0.5, 0.5))], ids=str)
def test_nothing_is_wrong_with_a_layer(layer: Layer) -> None:
    assert not [*layer_problems(layer, "it")]


def test_pieces_that_compute_again_begin_with_what_that_costs() -> None:
    again = replace(PIECES, recompute=Recompute(0.5, 0.75)).recomputed()
    assert again.pieces is not None
    assert again.pieces.backward == (Piece(2.75, weight=1.0),)
    assert again.pieces.times == (again.F, again.I, again.W) == (2.0, 2.75, 1.0)
