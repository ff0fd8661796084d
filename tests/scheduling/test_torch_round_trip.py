"""Every schedule that the installed PyTorch has goes from its files to ours and back, action by action."""

import csv

import pytest
from hypothesis import given, settings

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.actions import BUILTIN_KINDS, Action
from annopipe.scheduling.schedule_class import Schedule
from annopipe.scheduling.torch_waits import with_waits
from tests.scheduling.strategies import actions
from tests.scheduling.torch_schedules import (
    CLASSES,
    SINGLE,
    TORCH_DEFERS,
    TORCH_WAITS,
    classes_of_torch,
    torch_cells,
    torch_dump,
    torch_load,
    torch_lowered,
    torch_lowering,
    torch_lowering_with_waits,
    torch_order,
    torch_reads,
)

ONE_CHUNK = [(1, 1, 1), (1, 1, 3), (2, 1, 2), (3, 1, 5), (4, 1, 8)]
SEVERAL = [*ONE_CHUNK, (1, 2, 3), (2, 2, 4), (2, 3, 4), (3, 2, 3), (4, 2, 8)]
FOLDED = [(1, 2, 2), (2, 2, 4), (2, 2, 5), (3, 2, 7), (4, 2, 8)]
# Ranks, chunks and microbatches of each class.
SHAPES = {
    "_ScheduleForwardOnly": ONE_CHUNK,
    "ScheduleGPipe": ONE_CHUNK,
    "Schedule1F1B": ONE_CHUNK,
    "ScheduleLoopedBFS": [*SEVERAL, (3, 2, 1), (2, 2, 5)],
    "ScheduleInterleaved1F1B": [shape for shape in SEVERAL if shape != (3, 1, 5)] + [(3, 1, 4), (2, 2, 1)],
    "ScheduleInterleavedZeroBubble": [shape for shape in SEVERAL if shape != (3, 1, 5)] + [(3, 1, 4), (2, 2, 1)],
    "ScheduleZBVZeroBubble": [*FOLDED, (2, 2, 1), (3, 2, 2)],
    "ScheduleDualPipeV": FOLDED,
}
EVERY = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]
WITH_ORDER = [(name, shape) for name, shape in EVERY if name != "_ScheduleForwardOnly"]
each = pytest.mark.parametrize(("name", "shape"), EVERY, ids=lambda value: str(value).replace(" ", ""))
each_with_order = pytest.mark.parametrize(("name", "shape"), WITH_ORDER, ids=lambda value: str(value).replace(" ", ""))


def placement_of(name, ranks, chunks):
    if name in SINGLE:
        return placement.linear(ranks)
    return (
        placement.v(ranks)
        if name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
        else placement.looped(ranks, chunks)
    )


def without_idle(rows):
    """Nor waits: from 2.15 on torch has one behind the reduction of gradients."""
    return [[cell for cell in row if cell and "WAIT_" not in cell] for row in rows]


def test_no_class_of_this_pytorch_is_left_out() -> None:
    assert classes_of_torch() == set(CLASSES) == set(SHAPES)


@each_with_order
def test_what_torch_dumps_is_read_as_the_same_actions(name, shape, tmp_path) -> None:
    torch_dump(tmp_path / "order.csv", name, *shape)
    read = Schedule.from_csv(tmp_path / "order.csv")
    ranks, chunks, microbatches = shape
    assert read.programs.texts() == without_idle(torch_cells(name, *shape))
    assert read.placement == placement_of(name, ranks, chunks)
    # Its last rank names a microbatch too many: see below.
    assert read.microbatches == microbatches + (name == "Schedule1F1B")


@each_with_order
def test_what_torch_dumps_with_communication_is_read_as_the_same_actions(name, shape, tmp_path) -> None:
    torch_dump(tmp_path / "lowered.csv", name, *shape, communication=True)
    read = Schedule.from_csv(tmp_path / "lowered.csv")
    ranks, chunks, microbatches = shape
    assert read.programs.texts() == torch_lowered(name, *shape)
    assert read.placement == placement_of(name, ranks, chunks)
    assert read.microbatches == microbatches


@each
def test_torch_reads_an_order_that_we_write(name, shape, tmp_path) -> None:
    ranks, chunks, microbatches = shape
    order = torch_order(name, *shape)
    Schedule.of(placement_of(name, ranks, chunks), microbatches, order).to_csv(tmp_path / "order.csv")
    with (tmp_path / "order.csv").open(newline="") as file:
        assert [[torch_reads(cell) for cell in row] for row in csv.reader(file)] == order
    if name != "_ScheduleForwardOnly":  # torch's loader asks for backwards
        assert torch_load(tmp_path / "order.csv", *shape) == order


@each_with_order
@pytest.mark.parametrize("defer_receives", [False, True] if TORCH_DEFERS else [False])
def test_torch_reads_communication_that_we_write(name, shape, defer_receives, tmp_path) -> None:
    ranks, chunks, microbatches = shape
    lowered = torch_lowered(name, *shape, defer_receives=defer_receives)
    schedule = Schedule.of(placement_of(name, ranks, chunks), microbatches, lowered)
    schedule.to_csv(tmp_path / "lowered.csv", waits=TORCH_WAITS)
    assert torch_load(tmp_path / "lowered.csv", *shape, communication=True) == lowered
    assert Schedule.from_csv(tmp_path / "lowered.csv") == schedule


@each_with_order
def test_waits_that_are_written_are_left_out_when_they_are_read(name, shape, tmp_path) -> None:
    ranks, chunks, microbatches = shape
    lowered = torch_lowered(name, *shape)
    schedule = Schedule.of(placement_of(name, ranks, chunks), microbatches, lowered)
    schedule.to_csv(tmp_path / "waits.csv", waits=True)
    cells = [cell for line in (tmp_path / "waits.csv").read_text().splitlines() for cell in line.split(",")]
    started = sum("SEND_" in cell or "REDUCE_GRAD" in cell for row in lowered for cell in row)
    assert sum("WAIT_" in cell for cell in cells) == started > 0
    assert Schedule.from_csv(tmp_path / "waits.csv") == schedule


def test_waits_for_messages_that_are_not_there_are_refused(tmp_path) -> None:
    schedule = Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    with pytest.raises(ScheduleError, match=r"this schedule has none: write schedule\.lowered\(\)"):
        schedule.to_csv(tmp_path / "order.csv", waits=True)
    assert not (tmp_path / "order.csv").exists()


@pytest.mark.skipif(not TORCH_WAITS, reason="PyTorch before 2.15 has no such actions")
@each_with_order
def test_ranks_wait_where_torch_has_them_wait(name, shape) -> None:
    """But for receives, which torch may post between the start of a reduction and its wait."""
    found = torch_lowering_with_waits(torch_order(name, *shape))
    ours = [map(str, with_waits(map(Action.parse, row))) for row in torch_lowered(name, *shape)]
    without_receives = ([[cell for cell in row if "RECV" not in cell] for row in rows] for rows in (ours, found))
    assert next(without_receives) == next(without_receives)


def torch_knows(action):
    plain = all(single.nano_batches == 1 for single in action.singles)
    return plain and action.kind in BUILTIN_KINDS and action.kind != "OVERLAP"


@settings(deadline=None)
@given(actions().filter(torch_knows))
def test_torch_reads_each_action_that_it_knows_as_we_write_it(action) -> None:
    assert torch_reads(str(action)) == str(action)


@pytest.mark.parametrize("text", ["2OFFLOAD0", "2OPTIMIZER", "(0F0;0F1)OVERLAP", "(0F0;1W0)OVERLAP"])
def test_torch_refuses_kinds_beyond_its_own(text) -> None:
    assert str(Action.parse(text)) == text
    with pytest.raises(RuntimeError, match="Invalid"):
        torch_reads(text)


def test_torch_reads_a_nano_batched_action_as_the_whole_one() -> None:
    assert torch_reads("2F0/2") == "2F0"


@pytest.mark.parametrize(("text", "torch_makes"), [("0FOO0", "0F"), ("0F1x", "0F1"), ("0F", "0F"), ("٣F0", "3F0")])
def test_torch_reads_the_beginning_of_a_cell_and_we_the_whole(text, torch_makes) -> None:
    assert torch_reads(text) == torch_makes
    try:
        assert str(Action.parse(text)) == text
    except ScheduleError:
        return
    assert text == "0FOO0"  # an operation of a user, called FOO


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 2), (3, 5)])
def test_the_order_that_torch_has_for_1f1b_cannot_run(ranks, microbatches) -> None:
    cells = torch_cells("Schedule1F1B", ranks, 1, microbatches)
    last = [cell for cell in cells[-1] if "F" in cell]
    assert last == [f"{ranks - 1}F{microbatch}" for microbatch in range(1, microbatches + 1)]
    computed = [[cell for cell in row if "REDUCE" not in cell] for row in cells]
    with pytest.raises(AssertionError, match="Running Full Backward for stage ., microbatch 0 without first running"):
        torch_lowering(computed)


def test_an_order_of_ours_can_be_lowered_by_torch() -> None:
    lowered = torch_lowering([["0F0", "0B0"], ["1F0", "1B0"]])
    assert lowered == [
        ["0UNSHARD", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD", "0RESHARD"],
        ["1UNSHARD", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD", "1RESHARD"],
    ]
