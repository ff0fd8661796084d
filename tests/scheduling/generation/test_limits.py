import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.generation.limits import RankLimits
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import ORDERS, PRIORITIES, calm, two_waves


def limits(where, rank=0, **fields):
    return RankLimits(Rules.of(ScheduleSpec(where, 9, **fields)), rank)


def test_without_limits_everything_may_start():
    free = limits(placement.v(2))
    assert free.unlimited
    for k in range(9):
        assert free.allows(0, k)
        free.start_forward(0, k)


def test_without_a_backward_nothing_is_in_flight():
    assert limits(placement.linear(1), priority=("F",), in_flight=1, memory=1.0).unlimited


def test_forwards_count_until_their_backward_ends():
    one = limits(placement.linear(1), in_flight=2)
    one.start_forward(0, 0)
    assert one.allows(0, 1)
    one.start_forward(0, 1)
    assert not one.allows(0, 2)
    assert one.reason(0) == "over the limit: 2 of 2 in flight; what is begun must be finished"
    assert one.allows(0, 2, freed=(0, 0))
    one.end_backward(0, 0, full=True)
    assert one.allows(0, 2)


def test_memory_is_held_until_the_weight_gradient_and_by_what_runs_in_the_same_combination():
    costs = table(activation=2.0, kept_for_weight=0.25)
    one = limits(placement.linear(1), priority=("I", "F", "W"), memory=3.0, costs=costs)
    one.start_forward(0, 0)
    assert not one.allows(0, 1, freed=(0, 0))
    one.end_backward(0, 0, full=False)
    assert one.allows(0, 1)
    one.start_forward(0, 1)
    one.end_backward(0, 1, full=False)
    assert one.allows(0, 2)
    one.start_forward(0, 2)
    assert not one.allows(0, 3)
    assert one.reason(0) == "over the limit: 3 of 3 memory held; what is begun must be finished"
    one.end_weight(0)
    one.end_weight(0)
    one.end_backward(0, 2, full=False)
    assert one.allows(0, 3)


def test_stages_have_limits_of_their_own():
    both = limits(placement.v(1), in_flight="2 - c")
    both.start_forward(0, 0)
    both.start_forward(1, 0)
    assert both.allows(0, 1)
    assert not both.allows(1, 1)
    assert both.allows(1, 1, freed=(1, 0))
    assert not both.allows(1, 1, freed=(0, 0))
    assert both.reason(1) == "over the limit: 1 of 1 of stage 1 in flight; what is begun must be finished"


def test_room_is_kept_for_the_further_chunks_of_what_has_begun():
    both = limits(placement.looped(1, 2), in_flight=2)
    both.start_forward(0, 0)
    assert not both.allows(0, 1)
    assert both.allows(1, 0)


def test_what_finishes_must_leave_enough_for_the_next():
    # Microbatch 0 holds one stage when its backward is nearly done; 1 and 2 would each lack two, and then get one.
    three = limits(placement.looped(1, 3), in_flight=3)
    for stage in (0, 1, 2):
        three.start_forward(stage, 0)
    three.end_backward(2, 0, full=True)
    three.start_forward(0, 1)
    three.end_backward(1, 0, full=True)
    assert not three.allows(0, 2)
    assert three.allows(1, 1)


def test_what_a_combination_ends_no_longer_gives_room_to_others():
    two = limits(placement.looped(1, 2), in_flight=3)
    for stage, k in ((0, 0), (1, 0), (0, 1)):
        two.start_forward(stage, k)
    two.end_backward(1, 0, full=True)
    two.start_forward(0, 2)
    # With the last backward of microbatch 0 in the combination, 1, 2 and 3 would hold one each and lack one each.
    assert not two.allows(0, 3, freed=(0, 0))
    assert two.allows(1, 1, freed=(0, 0))


def test_a_combination_may_run_two_stages_of_one_microbatch():
    apart = placement.custom([0, 0], [])
    both = limits(apart, memory=2.0, pair=("F", "B"))
    both.start_forward(0, 0)
    assert both.allows(1, 0, freed=(0, 0))
    assert not both.allows(0, 1, freed=(0, 0))
    spec = ScheduleSpec(apart, 3, in_flight=2, pair=("F", "B"))
    spec.build().check()
    assert str(spec.build().ranks[0][1]) == "(1F0;0B0)OVERLAP_F_B"


@st.composite
def chains(draw):
    few = st.integers(1, 3)
    where = draw(
        st.builds(placement.looped, few, st.integers(1, 4)) | st.builds(placement.wave, few, st.integers(1, 4))
    )
    own = st.lists(st.integers(0, 8), min_size=where.ranks, max_size=where.ranks)
    chunks = [len(stages) for stages in where.stages_on]
    activation = draw(st.lists(st.integers(0, 8), min_size=where.stages, max_size=where.stages))
    needed = [sum(activation[stage] for stage in stages) for stages in where.stages_on]
    priority = draw(st.sampled_from([kinds for kinds in PRIORITIES if kinds != ("F",)]))
    partner = draw(st.sampled_from([kind for kind in priority if kind != "F"]))
    return {
        "placement": where,
        "microbatches": draw(st.integers(1, 8)),
        "priority": priority,
        "traversal": draw(st.sampled_from(ORDERS)),
        "backward_traversal": draw(st.sampled_from(ORDERS)),
        "in_flight": draw(st.none() | own.map(lambda more: [a + b for a, b in zip(chunks, more, strict=True)])),
        "memory": draw(st.none() | own.map(lambda more: [a + b for a, b in zip(needed, more, strict=True)])),
        "pair": draw(st.sampled_from([None, ("F", partner)])),
        "costs": table(activation=activation, kept_for_weight=draw(st.sampled_from([0.0, 0.5, 1.0]))),
    }


@settings(calm, max_examples=200)
@given(chains())
def test_a_chain_never_stops_under_limits_that_one_microbatch_passes(fields):
    ScheduleSpec(**fields).build().check()


@pytest.mark.parametrize(("ranks", "in_flight"), [(2, 2), (3, 3), (3, 4)])
def test_two_copies_that_need_equally_much_do_not_hold_each_other_up(ranks, in_flight):
    ScheduleSpec(two_waves(ranks), 6, in_flight=in_flight).build().check()


@pytest.mark.parametrize("latency", [0.0, 0.05, 1.5])
@pytest.mark.parametrize("microbatches", [5, 8, 13])
def test_ranks_with_many_folds_do_not_hold_each_other_up(microbatches, latency):
    for where in (placement.looped(4, 6), placement.wave(4, 6)):
        spec = ScheduleSpec(where, microbatches, priority=("I", "F", "W"), traversal="k // p, c, k", memory=24.0)
        spec.varied(costs=table(latency=latency)).build().check(memory=24.0)
