"""Placements: what each constructor makes, what is derived, and what is refused."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.placement import Placement, custom
from tests.scheduling.strategies import placements

CHAIN_OF_FOUR = ((0, 1), (1, 2), (2, 3))

NESTED: Any = [[0], [1]]
NO_EDGES: Any = [5]
AS_LISTS: Any = [[0, 1]]


@pytest.mark.parametrize(
    ("made", "rank_of", "text"),
    [
        (placement.linear(1), (0,), "Placement(linear: rank 0: 0)"),
        (placement.linear(3), (0, 1, 2), "Placement(linear: rank 0: 0, rank 1: 1, rank 2: 2)"),
        (placement.looped(2, 1), (0, 1), "Placement(looped: rank 0: 0, rank 1: 1)"),
        (placement.looped(2, 3), (0, 1, 0, 1, 0, 1), "Placement(looped: rank 0: 0 2 4, rank 1: 1 3 5)"),
        (placement.wave(2, 3), (0, 1, 1, 0, 0, 1), "Placement(wave: rank 0: 0 3 4, rank 1: 1 2 5)"),
        (placement.v(1), (0, 0), "Placement(v: rank 0: 0 1)"),
        (placement.v(3), (0, 1, 2, 2, 1, 0), "Placement(v: rank 0: 0 5, rank 1: 1 4, rank 2: 2 3)"),
        (custom([1, 0, 0]), (1, 0, 0), "Placement(custom: rank 0: 1 2, rank 1: 0)"),
    ],
)
def test_a_chain_puts_its_stages_on_ranks(made, rank_of, text) -> None:
    assert made.rank_of == rank_of
    assert repr(made) == text
    assert made.is_chain
    assert made.edges == tuple((stage, stage + 1) for stage in range(len(rank_of) - 1))
    assert made.depth_of == tuple(range(len(rank_of)))
    assert (made.copies, made.batch_wide, made.weights_of) == (1, frozenset(), tuple(range(len(rank_of))))


def test_bidirectional_has_a_second_copy_from_the_last_rank_to_the_first() -> None:
    made = placement.bidirectional(3)
    assert made.rank_of == (0, 1, 2, 2, 1, 0)
    assert made.edges == ((0, 1), (1, 2), (3, 4), (4, 5))
    assert made.weights_of == (0, 1, 2, 0, 1, 2)
    assert made.copy_of == (0, 0, 0, 1, 1, 1)
    assert (made.copies, made.is_chain) == (2, False)
    assert made.depth_of == (0, 1, 2, 0, 1, 2)
    assert made.chunk_of == (0,) * 6


def test_towers_meet_in_the_first_stage_of_the_top() -> None:
    made = placement.towers([0, 1], [2], top=[3, 0], batch_wide=True)
    assert made.rank_of == (0, 1, 2, 3, 0)
    assert made.edges == ((0, 1), (1, 3), (2, 3), (3, 4))
    assert made.predecessors == ((), (0,), (), (1, 2), (3,))
    assert made.successors == ((1,), (3,), (3,), (4,), ())
    assert made.depth_of == (0, 1, 0, 2, 3)
    assert made.batch_wide == {4}
    assert not made.is_chain
    assert not placement.towers([0], top=[1]).batch_wide


def test_chunks_count_the_stages_of_a_rank_in_the_order_of_the_model() -> None:
    assert placement.looped(2, 3).chunk_of == (0, 0, 1, 1, 2, 2)
    assert placement.v(2).chunk_of == (0, 0, 1, 1)
    # Stage 0 comes last in the model, and is the second of its rank.
    assert custom([0, 1, 0], edges=[(2, 1), (1, 0)]).chunk_of == (1, 0, 0)


def test_placements_are_equal_when_stages_and_edges_are_whatever_they_are_called() -> None:
    assert placement.looped(3, 1) == placement.linear(3)
    assert hash(placement.v(2)) == hash(placement.wave(2, 2))
    assert custom([0, 1, 2], edges=[(1, 2), (0, 1)]) == placement.linear(3)
    assert custom([0, 1, 2], edges=[(1, 2), (0, 1)]).is_chain
    assert placement.linear(3) != custom([0, 1, 2], edges=[(0, 1)])
    assert placement.linear(3) != custom([0, 1, 2], batch_wide=frozenset({2}))


@settings(deadline=None)
@given(placements(), st.integers(1, 9))
def test_every_microbatch_is_of_one_copy_and_the_shares_differ_by_one_at_most(made, microbatches) -> None:
    shares = {made.copy_of[stage]: made.microbatches_of(stage, microbatches) for stage in range(made.stages)}
    assert [m for copy in range(made.copies) for m in shares[copy]] == list(range(microbatches))
    assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1


@settings(deadline=None)
@given(placements())
def test_what_is_derived_agrees_with_the_edges_and_the_map(made) -> None:
    assert sorted(stage for held in made.stages_on for stage in held) == list(range(made.stages))
    assert all(made.rank_of[stage] == rank for rank, held in enumerate(made.stages_on) for stage in held)
    assert {(a, b) for b, before in enumerate(made.predecessors) for a in before} == set(made.edges)
    assert {(a, b) for a, after in enumerate(made.successors) for b in after} == set(made.edges)
    assert all(made.depth_of[a] < made.depth_of[b] for a, b in made.edges)
    assert pickle.loads(pickle.dumps(made)) == made


def _placement(**changed):
    fields = {"rank_of": (0, 1, 2, 3), "edges": CHAIN_OF_FOUR, "weights_of": (0, 1, 2, 3), "copy_of": (0, 0, 0, 0)}
    return Placement(**fields | changed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: placement.linear(0), "ranks=0: give a whole number, 1 or more"),
        (lambda: placement.linear(-2), "ranks=-2: give a whole number"),
        (lambda: placement.linear(True), "ranks=True: give a whole number"),
        (lambda: placement.linear(2.0), "ranks=2.0: give a whole number"),
        (lambda: placement.linear("2"), "ranks='2': give a whole number"),
        (lambda: placement.looped(2, 0), "chunks=0: give a whole number"),
        (lambda: placement.looped(0, 2), "ranks=0: give a whole number"),
        (lambda: placement.wave(2, None), "chunks=None: give a whole number"),
        (lambda: placement.wave(False, 2), "ranks=False: give a whole number"),
        (lambda: placement.v(0), "ranks=0: give a whole number"),
        (lambda: placement.bidirectional(0), "ranks=0: give a whole number"),
        (lambda: placement.towers(top=[0]), "at least one chain, a top, and a rank for at least one stage in each"),
        (lambda: placement.towers([0], top=[]), "at least one chain, a top"),
        (lambda: placement.towers([0], [], top=[1]), "at least one chain, a top"),
        (lambda: placement.towers([0], [2], top=[3]), "rank 1 holds no stage; number the ranks from 0 without gaps"),
        (lambda: custom([]), "at least one stage"),
        (lambda: custom([0, -1]), "ranks are whole numbers from 0"),
        (lambda: custom([0, 1.0]), "ranks are whole numbers from 0"),  # type: ignore[list-item]
        (lambda: custom([0, True]), "ranks are whole numbers from 0"),
        (lambda: custom("01"), "ranks are whole numbers from 0"),
        (lambda: custom([1, 2]), "rank 0 holds no stage"),
        (lambda: custom([0, 10**12]), "rank 1 holds no stage"),
        (lambda: custom([0, 1], [(0, 2)]), r"edge \(0, 2\) does not join two of the stages 0 to 1"),
        (lambda: custom([0, 1], [(-1, 0)]), r"edge \(-1, 0\) does not join two of the stages"),
        (lambda: custom([0, 1], [(1, 1)]), r"edge \(1, 1\) does not join two of the stages"),
        (lambda: custom([0, 1], [(0, 1, 1)]), r"edge \(0, 1, 1\) does not join two of the stages"),  # type: ignore[list-item]
        (lambda: custom([0, 1], [(0, True)]), r"edge \(0, True\) does not join two of the stages"),
        (
            lambda: custom([0, 1], [(0, 1), (0, 1)]),
            "an edge is given twice; a stage's output goes to another stage once",
        ),
        (lambda: custom([0, 1], [(0, 1), (1, 0)]), "the edges form a cycle; a stage cannot come after itself"),
        (
            lambda: custom([0, 1], batch_wide=frozenset({2})),
            "batch_wide names a stage that is not there; stages are 0 to 1",
        ),
        (lambda: _placement(weights_of=(0, 1)), "there are 4 stages: give weights_of and copy_of one entry for each"),
        (lambda: _placement(copy_of=(0,)), "there are 4 stages: give weights_of and copy_of one entry for each"),
        (lambda: _placement(copy_of=(0, 0, 0, 2)), "copy_of numbers the copies of the model from 0 without gaps"),
        (lambda: _placement(copy_of=(1, 1, 1, 1)), "copy_of numbers the copies of the model from 0 without gaps"),
        (lambda: _placement(copy_of=(0, 0, 1, 1)), "an edge joins two copies of the model; copies share parameters"),
        (lambda: _placement(weights_of=(0, 1, 3, 3)), r"weights_of\[2\] is 3: name the first stage with the same"),
        (lambda: _placement(weights_of=(0, 0, 1, 3)), r"weights_of\[2\] is 1: name the first stage with the same"),
        (lambda: _placement(weights_of=(0, -1, 2, 3)), r"weights_of\[1\] is -1: name the first stage with the same"),
    ],
)
def test_what_is_no_placement_is_refused(make, message) -> None:
    with pytest.raises(ScheduleError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: placement.custom(3), "rank_of=3: give one entry or more"),
        (lambda: placement.custom(NESTED), "ranks are whole numbers from 0"),
        (lambda: placement.custom([0, 1], NO_EDGES), "edge 5 does not join two of the stages 0 to 1"),
        (lambda: placement.towers(1, 2, top=3), "at least one chain, a top, and a rank"),
    ],
)
def test_what_is_not_even_a_list_is_refused_by_name(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()


def test_lists_and_iterators_do_for_tuples():
    made = placement.custom(iter([0, 1]), AS_LISTS, batch_wide=[1])
    assert made == placement.custom([0, 1], batch_wide=frozenset({1}))
    assert hash(made) == hash(placement.custom((0, 1), batch_wide=(1,)))


def test_neighbours_of_thousands_of_stages_are_found_at_once():
    made = placement.looped(64, 256)
    assert (made.predecessors[0], made.predecessors[1], made.successors[-1]) == ((), (0,), ())


def test_a_placement_that_is_no_chain_shows_how_its_stages_follow_each_other():
    two = placement.towers([0], [1], top=[2], batch_wide=True)
    assert repr(two) == "Placement(towers: rank 0: 0, rank 1: 1, rank 2: 2; edges 0-2 1-2; batch-wide 2)"
    assert "edges" not in repr(placement.v(2)) + repr(placement.bidirectional(2))
