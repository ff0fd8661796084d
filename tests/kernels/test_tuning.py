"""The choice of a tile: the fastest, once for calls of a kind."""

import math

import pytest
import torch

from annopipe.errors import GraphError
from annopipe.kernels.tiles import KERNEL_DTYPES, matrix_tiles
from annopipe.kernels.tuning import Choices


def test_the_fastest_tile_is_taken_and_the_first_of_equals():
    choices = Choices()
    assert choices.choose("a", "xyz", {"x": 2.0, "y": 1.0, "z": 1.0}.__getitem__) == "y"
    assert choices.choose("b", "xyz", {"x": 0.5, "y": math.inf, "z": 1.0}.__getitem__) == "x"


def test_calls_of_a_kind_are_timed_once():
    choices, timed = Choices(), []
    for kind in ("a", "b", "a"):
        choices.choose(kind, "xy", lambda tile: timed.append(tile) or 1.0)
    assert timed == ["x", "y", "x", "y"]
    assert (choices.known("a"), choices.known("c")) == ("x", None)


def test_where_no_tile_fits_it_is_refused():
    with pytest.raises(GraphError, match=r"none of 2 tiles of the kernel \('product', 3\) fits on this GPU"):
        Choices().choose(("product", 3), "xy", lambda tile: math.inf)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=str)
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("capability", [8, 9, 10])
def test_the_tile_decides_no_order_of_a_sum(dtype, precision, capability):
    for aligned, whole in ((True, True), (True, False), (False, False)):
        tiles = matrix_tiles(dtype, precision, capability, aligned=aligned, whole=whole)
        assert len({tile.depth for tile in tiles}) == 1
        assert len(set(tiles)) == len(tiles) > (not aligned) - 1


def test_a_type_without_kernels_is_refused():
    with pytest.raises(GraphError, match="there is no grouped kernel for torch.float64: it takes torch.bfloat16"):
        matrix_tiles(torch.float64, "ieee", 9)
