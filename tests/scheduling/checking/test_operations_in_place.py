import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.schedule_class import Schedule
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import OPERATIONS, any_placement, calm

OFFLOAD = Operation("OFFLOAD", after="F")
RECOMPUTE = Operation("RECOMPUTE", before="B")
OPTIMIZER = Operation("OPTIMIZER", after="W", per="stage")
FETCH = Operation("FETCH", before="F", per="stage")


def schedule(row, *operations, microbatches=2):
    programs = Programs.of(placement.linear(1), microbatches, [row.split()])
    return Schedule(programs, operations=operations)


@pytest.mark.parametrize(
    ("row", "operation", "message"),
    [
        (
            "0F0 0OFFLOAD0 0F1 0B0 0B1",
            OFFLOAD,
            "rank 0: 0OFFLOAD1 is missing; put it behind 0F1 (step 2)",
        ),
        ("0F0 0F1 0RECOMPUTE0 0B0 0B1", RECOMPUTE, "rank 0: 0RECOMPUTE1 is missing; put it in front of 0B1 (step 4)"),
        ("0F0 0F1 0B0 0B1", OPTIMIZER, "rank 0: 0OPTIMIZER is missing; put it behind 0B1 (step 3)"),
        ("0F0 0F1 0B0 0B1", FETCH, "rank 0: 0FETCH is missing; put it in front of 0F0 (step 0)"),
        (
            "0F0 0F1 0B0 0B1 0OPTIMIZER 0OPTIMIZER",
            OPTIMIZER,
            "rank 0, step 5: 0OPTIMIZER is done twice; it is at step 4, too; drop one of them",
        ),
        ("0F0 0OFFLOAD0 0OFFLOAD0 0B0 0F1 0OFFLOAD1 0B1", OFFLOAD, "0OFFLOAD0 is done twice"),
        (
            "0OFFLOAD0 0F0 0F1 0OFFLOAD1 0B0 0B1",
            OFFLOAD,
            "rank 0, step 0: 0OFFLOAD0 is in front of 0F0 (step 1); put it behind 0F0",
        ),
        (
            "0F0 0F1 0RECOMPUTE0 0B0 0B1 0RECOMPUTE1",
            RECOMPUTE,
            "rank 0, step 5: 0RECOMPUTE1 is behind 0B1 (step 4); put it in front of 0B1",
        ),
        (
            "0F0 (0F1;0B0)OVERLAP_F_B 0RECOMPUTE0 0RECOMPUTE1 0B1",
            RECOMPUTE,
            "rank 0, step 2: 0RECOMPUTE0 is behind (0F1;0B0)OVERLAP_F_B (step 1)",
        ),
        (
            "0F0 0F1 0I0 0W0 0OPTIMIZER 0I1 0W1",
            OPTIMIZER,
            "rank 0, step 4: 0OPTIMIZER is in front of 0W1 (step 6); put it behind 0W1",
        ),
        ("0F0 0FETCH 0F1 0B0 0B1", FETCH, "rank 0, step 1: 0FETCH is behind 0F0 (step 0); put it in front of 0F0"),
        (
            "0FETCH 0F0 0FETCH1 0F1 0B0 0B1",
            FETCH,
            "rank 0, step 2: 0FETCH1 is not what operation 'FETCH' is declared as: it is for other stages, or differs",
        ),
        ("0F0 0OFFLOAD0 0F1 0OFFLOAD1 0B0 0B1 0OFFLOAD", OFFLOAD, "rank 0, step 6: 0OFFLOAD is not what"),
        ("0F0 0OFFLOAD0 0F1 0B0 0B1", Operation("OFFLOAD", after="F", stages=()), "0OFFLOAD0 is not what"),
    ],
)
def test_what_is_declared_has_to_be_there_once_on_its_side(row, operation, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        schedule(row, operation).check()
    # Undeclared, it may be anywhere, but not twice for one microbatch.
    if "OFFLOAD0 0OFFLOAD0" not in row:
        schedule(row).check()


@pytest.mark.parametrize(
    ("row", "operation"),
    [
        ("0F0 0F1 0OFFLOAD1 0OFFLOAD0 0B0 0B1", OFFLOAD),
        ("0RECOMPUTE0 0F0 0F1 0RECOMPUTE1 0B0 0B1", RECOMPUTE),
        ("0F0 0RECOMPUTE0 (0F1;0B0)OVERLAP_F_B 0RECOMPUTE1 0B1", RECOMPUTE),
        ("0F0/2 0OFFLOAD0 0F1 0OFFLOAD1 0B0/2 0B1", OFFLOAD),
        ("0F0 0F1 0I0 0I1 0W0 0W1 0OPTIMIZER", OPTIMIZER),
    ],
)
def test_anywhere_on_its_side_is_fine(row, operation):
    schedule(row, operation).check()


def test_an_operation_on_another_rank_is_not_of_its_stage():
    programs = Programs.of(placement.linear(2), 1, [["0F0", "0B0", "1OPTIMIZER", "0OPTIMIZER"], ["1F0", "1B0"]])
    with pytest.raises(ScheduleError, match="rank 0, step 2: 1OPTIMIZER is of stage 1, and this rank holds 0"):
        Schedule(programs, operations=(OPTIMIZER,)).check()


def test_memory_counts_what_operations_change():
    drop = Operation("DROP", after="F", memory=-0.5)
    row = "0F0 0DROP0 0F1 0DROP1 0B0 0B1"
    costs = table(activation=4.0)
    schedule(row, drop).check(memory=6.0, costs=costs)
    with pytest.raises(
        ScheduleError, match=r"rank 0, step 2: 0F1 brings the activations kept to 6, and the limit is 5"
    ):
        schedule(row, drop).check(memory=5.0, costs=costs)
    more = Operation("MORE", before="B", memory=0.5)
    with pytest.raises(ScheduleError, match=r"rank 0, step 1: 0MORE0 brings the activations kept to 6"):
        schedule("0F0 0MORE0 0B0 0F1 0MORE1 0B1", more).check(memory=5.0, costs=costs)
    schedule("0F0 0MORE0 0B0 0F1 0MORE1 0B1", more).check(memory=6.0, costs=costs)


@settings(calm, max_examples=80)
@given(
    any_placement(),
    st.lists(st.sampled_from(OPERATIONS), unique_by=lambda operation: operation.name, min_size=1, max_size=4),
    st.sampled_from([("B", "F"), ("I", "F", "W")]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_what_is_built_passes_and_without_an_operation_does_not(where, operations, priority, paired, random):
    pair = ("F", priority[0]) if paired else None
    built = ScheduleSpec(where, 3, priority=priority, pair=pair, operations=operations).build()
    built.check()
    built.lowered(parameters=True).check(rendezvous=True)
    names = {operation.name for operation in operations}
    places = [(r, k) for r, row in enumerate(built.ranks) for k, action in enumerate(row) if action.kind in names]
    rank, step = random.choice(places)
    rows = [list(row) for row in built.ranks]
    gone = rows[rank].pop(step)
    with pytest.raises(ScheduleError, match=re.escape(f"rank {rank}: {gone} is missing; put it")):
        Schedule(Programs.of(where, 3, rows), operations=tuple(operations)).check()
