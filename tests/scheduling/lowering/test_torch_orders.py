"""PyTorch's own orders: they pass our check, lowered by torch and by us, and ours take no more steps than torch's."""

import itertools

import pytest
from torch.distributed.pipelining import schedules

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.checking.checker import check
from annopipe.scheduling.lowering.compute_only import compute_only
from annopipe.scheduling.lowering.passes import lower
from annopipe.scheduling.programs import Programs
from tests.scheduling.torch_schedules import CLASSES, SINGLE, TORCH_DEFERS, torch_cells, torch_lowering, torch_order

V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


def orders(class_name):
    """Placement, microbatches and order, for every size that the class takes."""
    chunks = (1,) if class_name in SINGLE else (2,) if class_name in V_SHAPED else (2, 3)
    for ranks, count, microbatches in itertools.product((1, 2, 3, 4), chunks, (1, 2, 3, 4, 8, 12)):
        try:
            order = torch_order(class_name, ranks, count, microbatches)
        except ValueError:
            continue  # not a size of this class
        where = placement.v(ranks) if class_name in V_SHAPED else placement.looped(ranks, count)
        yield where, microbatches, order


def steps(rows, where):
    """How many steps torch's own simulation takes."""
    actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    simulated = schedules._simulate_comms_compute(actions, where.rank_of.__getitem__, where.stages)
    return max(map(len, simulated.values()))


@pytest.mark.parametrize("class_name", CLASSES)
def test_every_order_of_torch_passes_and_can_be_lowered(class_name):
    for where, microbatches, order in orders(class_name):
        programs = Programs.of(where, microbatches, order)
        check(programs)
        for parameters in (False, True):
            lowered = lower(programs, parameters=parameters)
            check(lowered, rendezvous=True)
            assert compute_only(lowered) == programs


# Torch lowers no order without backwards.
@pytest.mark.parametrize("class_name", CLASSES[1:])
def test_what_torch_lowered_passes(class_name):
    for where, microbatches, order in orders(class_name):
        check(Programs.of(where, microbatches, torch_lowering(order)), rendezvous=True)


# Torch's simulation knows no combinations, and no parameter actions.
@pytest.mark.parametrize("class_name", [name for name in CLASSES[1:] if name != "ScheduleDualPipeV"])
def test_lowered_by_us_it_takes_no_more_steps_than_lowered_by_torch(class_name):
    for where, microbatches, order in orders(class_name):
        ours = lower(Programs.of(where, microbatches, order))
        theirs = compute_messages(torch_lowering(order))
        assert steps(ours.texts(), where) <= steps(theirs, where)


def compute_messages(rows):
    return [[cell for cell in row if not cell.endswith(("SHARD", "REDUCE_GRAD"))] for row in rows]


def test_upstream_defect_1f1b_names_forwards_that_are_not_there():
    rows = [list(filter(None, row)) for row in torch_cells("Schedule1F1B", 2, 1, 4)]
    with pytest.raises(ScheduleError, match="rank 1, step 6: 1F4: there is no microbatch 4"):
        Programs.of(placement.linear(2), 4, rows)


@pytest.mark.skipif(not TORCH_DEFERS, reason="PyTorch 2.11 cannot put receives off")
def test_upstream_defect_receives_put_off_are_not_in_the_order_of_the_sends():
    # Two streams of messages in one direction (activations up one side of the V, gradients down the other).
    order = torch_order("ScheduleZBVZeroBubble", 2, 2, 4)
    late = Programs.of(placement.v(2), 4, torch_lowering(order, defer_receives=True))
    with pytest.raises(
        ScheduleError, match=r"comes behind .* in front of .* two ranks have their messages in one order"
    ):
        check(late)
    check(lower(late, parameters=True), rendezvous=True)


@pytest.mark.skipif(not TORCH_DEFERS, reason="PyTorch 2.11 cannot put receives off")
def test_receives_put_off_leave_a_send_waiting_for_its_receive():
    order = torch_order("Schedule1F1B", 2, 1, 4)
    late = Programs.of(placement.linear(2), 4, torch_lowering(order, defer_receives=True))
    check(late)
    with pytest.raises(ScheduleError, match="0RECV_B0 comes behind 0SEND_F1"):
        check(late, rendezvous=True)
