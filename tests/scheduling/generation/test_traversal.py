import pytest
from hypothesis import given
from hypothesis import strategies as st

from annopipe.scheduling import placement
from annopipe.scheduling.generation.traversal import traversal_order, traversals, values_of
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import ORDERS, any_placement, calm


def pairs(where, m, rank, text):
    return [divmod(pair, m) for pair in traversal_order(where, m, rank, text)]


def orders(**fields):
    return traversals(ScheduleSpec(placement.looped(2, 2), 4, **fields))


@calm
@given(any_placement(), st.integers(1, 5), st.sampled_from(ORDERS[2:]))
def test_a_rank_takes_each_of_its_pairs_once_by_key_then_stage_then_microbatch(where, m, text):
    for rank, stages in enumerate(where.stages_on):
        expected = []
        for stage in stages:
            for k, microbatch in enumerate(where.microbatches_of(stage, m)):
                values = {**values_of(where, m, stage), "k": k}
                key = eval(f"({text},)", {}, values)
                expected.append((*map(int, key[0] if isinstance(key[0], tuple) else key), stage, microbatch))
        assert pairs(where, m, rank, text) == [entry[-2:] for entry in sorted(expected)]


def test_depth_first_takes_the_oldest_microbatch_and_breadth_first_the_first_chunk():
    assert pairs(placement.v(2), 2, 0, orders()[0]) == [(0, 0), (3, 0), (0, 1), (3, 1)]
    assert pairs(placement.v(2), 2, 0, orders(traversal="breadth-first")[0]) == [(0, 0), (0, 1), (3, 0), (3, 1)]


@pytest.mark.parametrize("traversal", ["depth-first", "breadth-first", "k // p, c, k"])
def test_backwards_go_from_the_last_chunk_to_the_first_unless_given(traversal):
    forward, backward = orders(traversal=traversal)
    where = placement.wave(2, 3)
    turned = [(placement.wave(2, 3).stages_on[1][::-1][where.chunk_of[s]], k) for s, k in pairs(where, 4, 1, forward)]
    assert pairs(where, 4, 1, backward) == turned
    assert orders(traversal=traversal, backward_traversal="-k")[1] == "-k"
    assert orders(traversal=traversal, backward_traversal="depth-first")[1] == "k, v - 1 - c"


def test_microbatches_are_counted_in_each_copy():
    assert pairs(placement.bidirectional(2), 4, 0, "k") == [(0, 0), (3, 2), (0, 1), (3, 3)]


def test_names_stand_for_the_stage_in_its_copy():
    assert values_of(placement.v(2), 5, 3) == {"p": 2, "r": 0, "m": 5, "v": 2, "s": 3, "c": 1, "k": 0}
    assert values_of(placement.bidirectional(2), 5, 3) == {"p": 2, "r": 0, "m": 5, "v": 1, "s": 3, "c": 0, "k": 0}
