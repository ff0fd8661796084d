import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.errors import AnnopipeError, ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.operations import Operation, insert_operations
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import calm

CHAIN = placement.linear(1)
OPTIMIZER = Operation("OPTIMIZER", after="W", per="stage")
FETCH = Operation("FETCH", before="F", per="stage")


def inserted(row, *operations, where=CHAIN, microbatches=2):
    """The one rank's actions with operations among them."""
    programs = Programs.of(where, microbatches, [row.split()])
    numbering, ranks = insert_operations(where, programs.numbering, programs.ranks, operations)
    found = ap.Schedule(Programs.numbered(where, numbering, ranks), operations=operations)
    found.check()
    return " ".join(map(str, found.ranks[0]))


def each(anchor):
    return Operation("PRE", before=anchor), Operation("POST", after=anchor)


@pytest.mark.parametrize(
    ("row", "anchor", "expected"),
    [
        ("0F0 0B0", "F", "0PRE0 0F0 0POST0 0B0"),
        ("0F0 0B0", "B", "0F0 0PRE0 0B0 0POST0"),
        ("0F0 0B0", "W", "0F0 0PRE0 0B0 0POST0"),
        ("0F0 0I0 0W0", "B", "0F0 0PRE0 0I0 0POST0 0W0"),
        ("0F0 0I0 0W0", "W", "0F0 0I0 0PRE0 0W0 0POST0"),
        ("0F0", "F", "0PRE0 0F0 0POST0"),
    ],
)
def test_once_per_microbatch_beside_the_action_in_either_form(row, anchor, expected):
    assert inserted(row, *each(anchor), microbatches=1) == expected


def test_in_a_combination_before_or_behind_the_whole():
    row = "0F0 (0F1;0B0)OVERLAP_F_B 0B1"
    store, recompute = Operation("STORE", after="F"), Operation("RECOMPUTE", before="B")
    assert inserted(row, store, recompute) == ("0F0 0STORE0 0RECOMPUTE0 (0F1;0B0)OVERLAP_F_B 0STORE1 0RECOMPUTE1 0B1")


def test_once_per_stage_before_the_first_or_behind_the_last():
    assert inserted("0F0 0F1 0B0 0B1", FETCH, OPTIMIZER) == "0FETCH 0F0 0F1 0B0 0B1 0OPTIMIZER"
    assert inserted("0F0 0F1 0I0 0I1 0W0 0W1", OPTIMIZER) == "0F0 0F1 0I0 0I1 0W0 0W1 0OPTIMIZER"
    behind = Operation("REDUCE", after="B", per="stage")
    assert inserted("0F0 0F1 0I0 0I1 0W0 0W1", behind) == "0F0 0F1 0I0 0I1 0REDUCE 0W0 0W1"
    assert inserted("0F0 0F1 0I0 0W0 0B1", behind, OPTIMIZER) == "0F0 0F1 0I0 0W0 0B1 0REDUCE 0OPTIMIZER"
    assert inserted("0F0 (0F1;0B0)OVERLAP_F_B 0B1", Operation("LOAD", before="B", per="stage")) == (
        "0F0 0LOAD (0F1;0B0)OVERLAP_F_B 0B1"
    )


def test_several_stand_in_the_order_in_which_they_are_given():
    first, second = Operation("FIRST", after="F"), Operation("SECOND", after="F")
    assert inserted("0F0 0B0", first, second, microbatches=1) == "0F0 0FIRST0 0SECOND0 0B0"
    assert inserted("0F0 0B0", second, first, microbatches=1) == "0F0 0SECOND0 0FIRST0 0B0"


def test_some_stages_only():
    row = "0F0 1F0 1B0 0B0"
    upper = Operation("OFFLOAD", after="F", stages=[1])
    assert upper == Operation("OFFLOAD", after="F", stages=(1,))
    assert inserted(row, upper, where=placement.v(1), microbatches=1) == "0F0 1F0 1OFFLOAD0 1B0 0B0"
    assert [upper.applies_to(stage) for stage in (0, 1)] == [False, True]


def test_a_copy_that_sees_no_microbatch_has_no_operations():
    spec = ScheduleSpec(placement.bidirectional(2), 1, operations=(FETCH, OPTIMIZER))
    spec.build().check()
    assert [" ".join(map(str, actions)) for actions in spec.build().ranks] == [
        "0FETCH 0F0 0B0 0OPTIMIZER",
        "1FETCH 1F0 1B0 1OPTIMIZER",
    ]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (OPTIMIZER, "operation 'OPTIMIZER' follows B or W, and the schedule has none on its stages; drop it"),
        (Operation("RECOMPUTE", before="B"), "operation 'RECOMPUTE' precedes B or I, and the schedule has none"),
        (Operation("FETCH", before="F", stages=()), "operation 'FETCH' precedes F, and the schedule has none"),
        (Operation("FETCH", before="F", stages=(0, 2)), "operation 'FETCH' is for stage 2; stages are 0 to 1"),
    ],
)
def test_what_belongs_to_nothing_is_refused(operation, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        ScheduleSpec(placement.linear(2), 2, priority=("F",), operations=(operation,)).build()


def test_names_are_used_once_and_no_more_is_taken_away_than_is_there():
    twice = (Operation("OFFLOAD", after="F"), Operation("OFFLOAD", before="B"))
    with pytest.raises(ScheduleError, match="two operations are called 'OFFLOAD'; give each its own name"):
        ScheduleSpec(CHAIN, 1, operations=twice).build()
    too_much = (Operation("DROP", after="F", memory=-0.75), Operation("OFFLOAD", after="F", memory=-0.5))
    with pytest.raises(ScheduleError, match=r"operations leave -0.25 of the activation of stage 0"):
        ScheduleSpec(CHAIN, 1, operations=too_much).build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "F"}, "operation 'F': the name is taken by an action of every schedule"),
        ({"name": "UNSHARD"}, "the name is taken"),
        ({"name": 3}, "operation 3: the name is taken by an action of every schedule, or no text"),
        ({"name": ["OFFLOAD"]}, "or no text; choose another"),
        ({"name": "offload"}, "an operation's name is two or more capitals"),
        ({"before": "B"}, "give after= or before=, one of the two"),
        ({"after": None}, "give after= or before=, one of the two"),
        ({"after": "I"}, "it follows or precedes 'I'; it can be F, B or W"),
        ({"after": ""}, "it follows or precedes ''; it can be F, B or W"),
        ({"after": ["F"]}, "it follows or precedes ['F']"),
        ({"per": "step"}, "per='step': it is done per 'microbatch' or per 'stage'"),
        ({"stages": 1}, "stages=1: give whole numbers, 0 or more, or None for all"),
        ({"stages": "01"}, "stages=('0', '1'): give whole numbers"),
        ({"stages": [-1]}, "stages=(-1,): give whole numbers"),
        ({"stages": [True]}, "stages=(True,): give whole numbers"),
        ({"time": -1.0}, "time=-1.0: give a number that is finite and not negative"),
        ({"time": math.inf}, "time=inf: give a number that is finite"),
        ({"time": "1"}, "time='1': give a number"),
        ({"time": True}, "time=True: give a number"),
        ({"resource": ""}, "resource='': give 'compute', or the name of another resource"),
        ({"resource": None}, "resource=None: give 'compute'"),
        ({"memory": 1.5}, "memory=1.5: it is a share of the activation of one microbatch, -1 to 1"),
        ({"memory": math.nan}, "memory=nan: it is a share"),
        ({"memory": "1"}, "memory='1': it is a share"),
        ({"memory": 0.5, "per": "stage"}, "memory is what a microbatch keeps from forward to backward"),
        ({"memory": 0.5, "after": "W"}, "memory is what a microbatch keeps from forward to backward"),
        ({"memory": 0.5, "after": None, "before": "F"}, "memory is what a microbatch keeps from forward to backward"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        Operation(**{"name": "OFFLOAD", "after": "F", **fields})


SCALARS = st.sampled_from([None, True, 0, -1, 0.5, math.nan, "", "F", "B", "AB", b"F", object(), (0,), [0], {}])


@given(st.dictionaries(st.sampled_from(sorted(Operation.__dataclass_fields__)), SCALARS, max_size=3))
def test_whatever_is_given_is_an_operation_or_an_error_of_ours(fields):
    try:
        operation = Operation(**{"name": "OFFLOAD", "after": "F", **fields})
    except AnnopipeError as error:
        assert str(error)  # noqa: PT017 - either end is fine
    else:
        assert hash(operation) == hash(Operation(**{"name": "OFFLOAD", "after": "F", **fields}))


# Times and memory by hand: one rank, F = 1 and B = 2, two microbatches, both forwards first.
BOTH = ScheduleSpec(CHAIN, 2, priority=("F", "B"), costs=table(activation=4.0))


def spans(timeline, beside=False):
    return [(span.text, span.start, span.end) for span in (timeline.beside if beside else timeline.spans)[0]]


def simulated(*operations, **changes):
    spec = BOTH.varied(operations=operations, **changes)
    spec.build().check()
    return ap.simulate(spec.build(), spec.costs)


def test_an_operation_of_the_rank_takes_its_time_in_the_list():
    found = simulated(
        Operation("RECOMPUTE", before="B", time=0.5), Operation("OPTIMIZER", after="W", per="stage", time=3)
    )
    assert spans(found)[2:] == [
        ("0RECOMPUTE0", 2.0, 2.5),
        ("0B0", 2.5, 4.5),
        ("0RECOMPUTE1", 4.5, 5.0),
        ("0B1", 5.0, 7.0),
        ("0OPTIMIZER", 7.0, 10.0),
    ]


def test_operations_of_one_resource_run_one_after_the_other_beside_the_computation():
    out = Operation("OFFLOAD", after="F", time=1.5, resource="copy")
    back = Operation("RELOAD", before="B", time=0.5, resource="copy")
    found = simulated(out, back)
    assert spans(found, beside=True) == [
        ("0OFFLOAD0", 1.0, 2.5),
        ("0OFFLOAD1", 2.5, 4.0),
        ("0RELOAD0", 4.0, 4.5),
        ("0RELOAD1", 6.5, 7.0),
    ]
    assert spans(found)[2:] == [("0B0", 4.5, 6.5), ("0B1", 7.0, 9.0)]
    two = simulated(out, Operation("RELOAD", before="B", time=0.5, resource="other"))
    assert spans(two)[2:] == [("0B0", 2.5, 4.5), ("0B1", 5.0, 7.0)]


def test_what_is_offloaded_is_gone_at_its_end_and_back_from_its_start():
    found = simulated(
        Operation("OFFLOAD", after="F", time=0.5, resource="copy", memory=-0.75),
        Operation("RELOAD", before="B", time=0.5, resource="copy", memory=0.75),
    )
    # At 2.5 OFFLOAD1 takes away 3 and RELOAD0 brings 3; at 5 B0 gives back 4 and RELOAD1 brings 3.
    assert found.memory[0] == ((0.0, 4.0), (1.0, 8.0), (1.5, 5.0), (5.0, 4.0), (7.5, 0.0))


def test_a_backward_gives_back_what_is_then_kept():
    dropped = simulated(Operation("DROP", after="F", memory=-0.75))
    assert dropped.memory[0] == ((0.0, 4.0), (1.0, 5.0), (2.0, 2.0), (4.0, 1.0), (6.0, 0.0))
    recomputed = simulated(Operation("RECOMPUTE", before="B", time=1.0, memory=0.5))
    assert recomputed.memory[0] == ((0.0, 4.0), (1.0, 8.0), (2.0, 10.0), (5.0, 6.0), (8.0, 0.0))


@pytest.mark.parametrize("kept", [0.0, 0.25, 1.0])
def test_a_split_backward_gives_it_back_in_its_shares(kept):
    drop = Operation("DROP", after="F", memory=-0.5)
    found = simulated(drop, microbatches=1, priority=("I", "F", "W"), costs=table(activation=8.0, kept_for_weight=kept))
    expected = [(0.0, 8.0), (1.0, 4.0), (2.0, 4.0 * kept), (3.0, 0.0)]
    kept_changes = [
        entry for before, entry in zip([(0.0, None), *expected], expected, strict=False) if before[1] != entry[1]
    ]
    assert list(found.memory[0]) == kept_changes


def test_a_combination_gives_back_what_its_parts_keep():
    drop = Operation("DROP", after="F", memory=-0.5)
    found = simulated(drop, pair=("F", "B"), in_flight=1)
    assert [text for text, *_ in spans(found)] == ["0F0", "0DROP0", "(0F1;0B0)OVERLAP_F_B", "0DROP1", "0B1"]
    assert found.memory[0] == ((0.0, 4.0), (1.0, 6.0), (4.0, 4.0), (4.0, 2.0), (6.0, 0.0))


def test_without_a_backward_operations_change_no_memory():
    drop = Operation("DROP", after="F", memory=-0.5)
    assert simulated(drop, priority=("F",)).memory[0][-1] == (2.0, 0.0)
    assert simulated(drop, priority=("F",)).peaks == (4.0,)


def test_a_memory_limit_leaves_room_for_what_operations_bring_back():
    recompute = Operation("RECOMPUTE", before="B", memory=0.5)
    found = simulated(recompute, memory=11.0)
    assert found.peaks[0] <= 11.0
    assert [text for text, *_ in spans(found)][:2] == ["0F0", "0RECOMPUTE0"]
    assert simulated(recompute, memory=12.0).peaks == (10.0,)


SIZES = st.sampled_from([-0.5, -0.25, 0.0, 0.25, 0.5])


@settings(calm, max_examples=60)
@given(st.lists(SIZES, min_size=1, max_size=3), st.booleans(), st.sampled_from(["v", "linear", "bidirectional"]))
def test_all_memory_comes_back_whatever_operations_change(sizes, split, name):
    operations = tuple(
        Operation(f"PART_{'ABC'[index]}", memory=size, time=0.5, resource="copy" if index else "compute", **anchor)
        for index, size in enumerate(sizes)
        for anchor in [{"after": "F"} if size < 0 else {"before": "B"}]
    )
    where = getattr(placement, name)(ranks=2)
    spec = ScheduleSpec(where, 3, priority=("I", "F", "W") if split else ("B", "F"), operations=operations)
    try:
        schedule = spec.build()
    except ScheduleError as error:
        assert "of the activation of stage" in str(error)  # noqa: PT017 - a sum below -1
        return
    schedule.check(memory=100)
    timeline = ap.simulate(schedule, table(kept_for_weight=0.5))
    assert [row[-1][1] for row in timeline.memory] == pytest.approx([0.0, 0.0])
    assert min(size for row in timeline.memory for _, size in row) >= -1e-9


def test_forwards_alone_give_back_what_they_took_whatever_is_done_with_it():
    spec = ScheduleSpec(placement.linear(2), 2, priority=("F",), costs=table(activation=[1.0, 5.0]))
    for memory in (-1.0, 1.0):
        moved = spec.varied(operations=(Operation("MOVE", after="F", stages=(0,), memory=memory),)).build()
        moved.check(memory=5, costs=spec.costs)
        with pytest.raises(ScheduleError, match="1F0 brings the activations kept to 5"):
            moved.check(memory=2, costs=spec.costs)


def test_an_operation_before_i_is_told_what_b_means():
    with pytest.raises(ScheduleError, match='write "B", which is the backward in whichever form'):
        Operation("FETCH", before="I")
