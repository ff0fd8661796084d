import re

import pytest

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.generation.given_limits import (
    activation_of,
    in_flight_of_ranks,
    in_flight_of_stages,
    memory_of_ranks,
)
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.spec import ScheduleSpec


def spec(where=None, **fields):
    return ScheduleSpec(placement.v(2) if where is None else where, 4, **fields)


@pytest.mark.parametrize(
    ("given", "ranks"),
    [(None, [None, None]), (3, [3, 3]), ((2, 5), [2, 5]), ([2, 5], [2, 5]), ("p*v - r", [4, 3]), ("m", [4, 4])],
)
def test_a_limit_is_given_once_or_for_each_rank_or_by_a_formula(given, ranks):
    assert in_flight_of_ranks(spec(in_flight=given)) == ranks
    assert in_flight_of_stages(spec(in_flight=given)) == [None] * 4


@pytest.mark.parametrize(("given", "stages"), [("s + 1", [1, 2, 3, 4]), ("2 - c", [2, 2, 1, 1])])
def test_a_formula_with_stage_or_chunk_limits_each_stage(given, stages):
    assert in_flight_of_stages(spec(in_flight=given)) == stages
    assert in_flight_of_ranks(spec(in_flight=given)) == [None, None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (1, "in_flight=1 is 1 on rank 0, which holds 2 stages of a microbatch at once; give 2 or more"),
        ((2, 0), "in_flight=(2, 0) is 0 on rank 1"),
        ("v - r", "in_flight='v - r' is 1 on rank 1"),
        ("s - 1", "in_flight='s - 1' is -1 for stage 0, on rank 0; a stage needs 1 or more"),
        ("1 // s", "'1 // s' divides by zero"),
    ],
)
def test_a_limit_under_which_nothing_can_run_names_the_rank(given, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        spec(in_flight=given).build()


def test_memory_is_given_once_or_for_each_rank():
    assert memory_of_ranks(spec()) == [None, None]
    assert memory_of_ranks(spec(memory=2)) == [2, 2]
    assert memory_of_ranks(spec(memory=(2.0, 9.5))) == [2.0, 9.5]


def test_memory_has_room_for_one_microbatch_of_the_larger_copy():
    sizes = table(activation=[1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ScheduleError, match=r"memory=4.5 on rank 0: one microbatch keeps 5.0 there; give 5.0 or more"):
        memory_of_ranks(spec(memory=4.5, costs=sizes))
    two = placement.bidirectional(2)
    with pytest.raises(ScheduleError, match=r"memory=3.5 on rank 0: one microbatch keeps 4.0 there"):
        memory_of_ranks(spec(two, memory=3.5, costs=sizes))
    assert memory_of_ranks(spec(two, memory=4.0, costs=sizes)) == [4.0, 4.0]


def test_a_limit_that_is_the_sum_itself_is_enough():
    tenths = table(activation=0.1)
    assert memory_of_ranks(spec(placement.looped(1, 3), memory=0.3, costs=tenths)) == [0.3]


def test_what_operations_bring_is_held_and_what_they_take_is_not_counted_on():
    drop = Operation("DROP", after="F", memory=-0.75)
    back = Operation("BACK", before="B", memory=0.75, stages=(0,))
    more = Operation("MORE", before="B", memory=0.5, stages=(0, 1))
    found = spec(operations=(back, drop, more), costs=table(activation=2.0))
    assert [activation_of(found, stage) for stage in range(4)] == [3.0, 2.0, 2.0, 2.0]
    assert activation_of(spec(operations=(more,)), 1) == 1.5
