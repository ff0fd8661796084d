import pytest

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.lowering.compute_only import compute_only
from annopipe.scheduling.lowering.passes import lower
from annopipe.scheduling.lowering.reduce_grads import add_reduce_grads
from annopipe.scheduling.lowering.unshards import add_reshards, add_unshards
from annopipe.scheduling.programs import Programs
from tests.scheduling.torch_schedules import torch_lowering


def programs(row, stages=4, microbatches=4):
    return Programs.of(placement.looped(1, stages), microbatches, [row.split()])


def text(found):
    return " ".join(found.texts()[0])


ROW = "0F0 1F0 2F0 2B0 1B0 0B0"
# max_active -> the same with UNSHARD and RESHARD
GOLDEN = {
    1: "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1RESHARD 2UNSHARD 2F0 2B0 2RESHARD 1UNSHARD 1B0 1RESHARD 0UNSHARD 0B0 "
    "0RESHARD",
    2: "0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 2F0 2B0 2RESHARD 0UNSHARD 1B0 1RESHARD 0B0 0RESHARD",
    3: "0UNSHARD 1UNSHARD 2UNSHARD 0F0 1F0 2F0 2B0 2RESHARD 1B0 1RESHARD 0B0 0RESHARD",
}


@pytest.mark.parametrize("max_active", GOLDEN)
def test_stages_are_gathered_ahead_and_let_go_after_use(max_active):
    found = add_unshards(programs(ROW), max_active=max_active)
    assert text(add_reshards(found)) == GOLDEN[max_active]


def test_a_combination_has_all_its_stages_whatever_the_limit():
    found = add_reshards(add_unshards(programs("0F0 1F0 (0F1;1B0)OVERLAP_F_B 0B0"), max_active=1))
    assert text(found) == ("0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 0UNSHARD (0F1;1B0)OVERLAP_F_B 1RESHARD 0B0 0RESHARD")


def test_operations_are_no_use_and_stay():
    found = add_reshards(add_unshards(programs("0SYNC 0F0 0OFFLOAD0 1F0 1SYNC"), max_active=1))
    assert text(found) == "0SYNC 0UNSHARD 0F0 0RESHARD 0OFFLOAD0 1UNSHARD 1F0 1RESHARD 1SYNC"


@pytest.mark.parametrize("max_active", [0, -1])
def test_no_stage_at_a_time_is_refused(max_active):
    with pytest.raises(ScheduleError, match=f"max_active={max_active}: at least 1 stage"):
        add_unshards(programs(ROW), max_active=max_active)


def test_gradients_are_reduced_behind_the_last_backward():
    found = add_reduce_grads(programs("0F0 1F0 1I0 0B0 1W0 0F1 0B1"))
    assert text(found) == "0F0 1F0 1I0 0B0 1W0 1REDUCE_GRAD 0F1 0B1 0REDUCE_GRAD"


def test_a_combination_of_last_backwards_is_followed_by_both_reductions():
    found = add_reduce_grads(programs("0F0 1F0 (1B0;0B0)OVERLAP"))
    assert text(found) == "0F0 1F0 (1B0;0B0)OVERLAP 1REDUCE_GRAD 0REDUCE_GRAD"


def test_forwards_alone_have_no_gradients():
    assert text(add_reduce_grads(programs("0F0 1F0"))) == "0F0 1F0"


@pytest.mark.parametrize(
    ("add", "row", "action"),
    [
        (add_unshards, "0UNSHARD 0F0", "0UNSHARD"),
        (add_unshards, "0F0 0RESHARD", "0RESHARD"),
        (add_reshards, "0UNSHARD 0F0 0RESHARD", "0RESHARD"),
        (add_reduce_grads, "0F0 0B0 0REDUCE_GRAD", "0REDUCE_GRAD"),
    ],
)
def test_actions_that_are_there_already_are_refused(add, row, action):
    with pytest.raises(ScheduleError, match=rf"rank 0, step \d: {action} is there already; take compute_only\(\)"):
        add(programs(row))


def test_compute_only_drops_what_lowering_adds_and_nothing_else():
    rows = [["0SYNC", "0F0", "(0F1;0B0)OVERLAP_F_B", "0OFFLOAD0", "0B1/2"], ["1F0", "1B0", "1F1", "1I1", "1W1"]]
    plain = Programs.of(placement.linear(2), 2, rows)
    full = lower(plain, parameters=True)
    assert full != plain
    assert compute_only(full) == plain
    assert compute_only(plain) == plain


@pytest.mark.parametrize("row", [ROW, "0F0 1F0 2F0 3F0 0F1 1F1 2F1 3F1 3B0 2B0 1B0 0B0 3B1 2B1 1B1 0B1"])
def test_parameter_actions_are_where_torch_has_them(row):
    stages = 3 if "3F0" not in row else 4
    microbatches = 2 if "0F1" in row else 1
    full = lower(programs(row, stages, microbatches), parameters=True)
    assert full.texts() == torch_lowering([row.split()])
