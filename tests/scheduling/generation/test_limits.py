"""Limits on what is in flight: a generated schedule keeps them, and is found whenever one microbatch fits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.scheduling import ScheduleSpec, placement, table
from annopipe.simulation import simulate


def test_a_pair_takes_before_it_gives_back():
    spec = ScheduleSpec(placement.v(2), 6, pair=("F", "B"), memory=3.0)
    built = spec.build()
    built.check(memory=3)
    assert simulate(built, table()).peak_memory == 3
    assert any(action.parts for program in built.ranks for action in program)


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.integers(1, 4),
    ranks=st.integers(1, 3),
    priority=st.sampled_from([("B", "F"), ("F", "B"), ("I", "F", "W"), ("F", "I", "W")]),
    traversal=st.sampled_from(["depth-first", "breadth-first", "k // p, c, k"]),
    spare=st.integers(0, 4),
    paired=st.booleans(),
    in_bytes=st.booleans(),
)
def test_a_limit_with_room_for_one_microbatch_is_enough(chunks, ranks, priority, traversal, spare, paired, in_bytes):
    stages = placement.looped(ranks, chunks)
    limit = {"memory": float(chunks + spare)} if in_bytes else {"in_flight": chunks + spare}
    pair = ("F", next(kind for kind in priority if kind != "F")) if paired else None
    built = ScheduleSpec(stages, 5, priority, traversal=traversal, pair=pair, **limit).build()
    built.check(memory=limit.get("memory"))


@pytest.mark.parametrize("kept", [0.25, 1.0])
def test_a_later_stage_that_keeps_more_does_not_stop_its_rank(kept):
    costs = table(activation=[1, 2, 3, 4], kept_for_weight=kept)
    spec = ScheduleSpec(placement.v(2), 6, priority=("I", "F", "W"), memory=6.0, costs=costs)
    spec.build().check(memory=6, costs=costs)
