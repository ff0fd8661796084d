"""CSV: exact round trips, what is let pass, and what is refused with row, rank and column."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling import csv_format, placement
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.schedule_class import Schedule
from tests.scheduling.strategies import programs

ONE_F_ONE_B = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
TEXT = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
V_WITH_MESSAGES = """\
0UNSHARD,3UNSHARD,0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,0RECV_B0,0I0,3W0,0W0,3REDUCE_GRAD,0REDUCE_GRAD
1UNSHARD,2UNSHARD,1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0,1RESHARD,2RESHARD
"""


def made(rows, microbatches=2, on=None):
    return Programs.of(on or placement.linear(len(rows)), microbatches, rows)


def test_a_row_is_a_rank_and_a_cell_an_action() -> None:
    assert csv_format.write(made(ONE_F_ONE_B)) == TEXT
    assert csv_format.read(TEXT) == made(ONE_F_ONE_B)


@settings(deadline=None)
@given(programs())
def test_what_is_written_is_read_as_the_same(written) -> None:
    text = csv_format.write(written)
    assert csv_format.read(text, placement=written.placement, microbatches=written.microbatches) == written


@settings(deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_idle_steps_space_around_cells_and_line_ends_change_nothing(written, random) -> None:
    rows = [line.split(",") for line in csv_format.write(written).splitlines()]
    loose = ""
    for row in rows:
        cells = [cell for text in row for cell in [""] * random.randrange(2) + [text]] + [""] * random.randrange(3)
        spaced = (f"{random.choice(['', ' ', chr(9)])}{cell}{random.choice(['', '  '])}" for cell in cells)
        loose += ",".join(spaced) + random.choice(["\n", "\r\n"])
    assert csv_format.read(loose, placement=written.placement, microbatches=written.microbatches) == written


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n",
        "0F0,0F1,0B0,0B1,,,\n1F0,1B0,1F1,1B1\n",
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1",
        "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n",
        "0F0,0F1,0B0,0B1\r1F0,1B0,1F1,1B1\r",
        "0F0, 0F1,\t0B0 ,0B1\n 1F0,1B0 , ,1F1,1B1\n",
        '"0F0","0F1","","0B0",0B1\n1F0,1B0,1F1,1B1\n',
        "\ufeff0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    ],
    ids=["idle", "trailing commas", "no last line end", "CRLF", "CR", "space", "quotes", "byte order mark"],
)
def test_what_spreadsheets_and_people_write_is_let_pass(text) -> None:
    assert csv_format.read(text) == made(ONE_F_ONE_B)


def test_rows_say_which_rank_holds_which_stage_and_how_many_microbatches_there_are() -> None:
    read = csv_format.read(V_WITH_MESSAGES)
    assert read.placement == placement.v(2)
    assert read.microbatches == 1
    assert csv_format.write(read) == V_WITH_MESSAGES


@pytest.mark.parametrize("cell", ["2RECV_F0", "2UNSHARD", "2OFFLOAD0", "2OPTIMIZER", "(0F0;2B0)OVERLAP_F_B", "2F0/2"])
def test_any_kind_of_cell_says_where_its_stage_is(cell) -> None:
    assert csv_format.read(f"0F0,{cell}\n1F0").placement.rank_of == (0, 1, 0)


def test_a_placement_that_is_passed_is_kept_with_its_edges_and_may_have_idle_ranks() -> None:
    towers = placement.towers([0], [1], top=[2])
    rows = [["0F0"], [], ["2F0"]]
    read = csv_format.read("0F0\n\n2F0\n", placement=towers)
    assert read == made(rows, 1, towers)
    assert read.placement is towers


def test_microbatches_that_no_cell_names_can_be_said() -> None:
    assert csv_format.read("0F1\n", microbatches=3) == made([["0F1"]], 3)


NOT_AN_ACTION = [
    "0FOO0x", "0F", "0F01", "0f0", "-1F0", "0F0 0F1", "0F0;0F1", "0F0/1", "0UNSHARD0", "(0F1)OVERLAP_F_B", "None",
    "٣F0", "0F٣", "\u00a00F0", "0F0\u200b", "0F0\ufeff", "=0F0", "idle", "'0F0'", "#", "1", "(0F1; 1B0)OVERLAP_F_B",
]  # fmt: skip


@pytest.mark.parametrize("cell", NOT_AN_ACTION, ids=ascii)
def test_a_cell_that_is_not_wholly_an_action_is_refused_with_its_place(cell) -> None:
    with pytest.raises(ScheduleError, match=r"^naive.csv, row 2 \(rank 1\), column 3: ") as caught:
        csv_format.read(f"0F0,0B0\n1F0,,{cell},1B0\n", source="naive.csv")
    assert "'F' of stage" in str(caught.value) or "'UNSHARD' of" in str(caught.value) or repr(cell) in str(caught.value)


def test_a_zero_byte_is_refused() -> None:
    # Python's csv module refuses it before 3.11.
    with pytest.raises(ScheduleError, match="naive.csv, (row 1 .*is not an action|line 1: line contains NUL)"):
        csv_format.read("0F0\0\n", source="naive.csv")


TWO = {"placement": placement.linear(2)}
REFUSED = [
    ("", {}, " has no rows: write one row of actions per rank"),
    ("\ufeff", {}, " has no rows"),
    ("\n", {}, r", row 1 \(rank 0\) has no action; take an empty row out, or pass a placement that has the stages"),
    ("0F0\n\n1F0\n", {}, r", row 2 \(rank 1\) has no action"),
    ("0F0\n1F0\n\n", {}, r", row 3 \(rank 2\) has no action"),
    ("0F0\n, ,\n", {}, r", row 2 \(rank 1\) has no action"),
    ("0F0\n2F0\n", {}, " names no stage 1, and stages up to 2; they count from 0 without gaps"),
    ("1F0\n", {}, " names no stage 0, and stages up to 1"),
    ("0F0,999999999F0\n", {}, " names no stage 1, and stages up to 999999999"),
    ("0F0\n1F0,0B0\n", {}, r", row 2 \(rank 1\), column 2: 0B0 is of stage 0, which row 1 has on rank 0; a stage"),
    ("0F0\n1F0,(1F1;0B0)OVERLAP_F_B\n", {}, r", row 2 \(rank 1\), column 2: \(1F1;0B0\)OVERLAP_F_B is of stage 0"),
    ("0F0,1RECV_F0\n1F0\n", {}, r", row 2 \(rank 1\), column 1: 1F0 is of stage 1, which row 1 has on rank 0"),
    ("0F0,0F2\n", {}, " names no microbatch 1, and microbatches up to 2; they count from 0 without gaps, or"),
    ("0F1\n", {}, " names no microbatch 0, and microbatches up to 1"),
    ("0F999999999\n", {}, " names no microbatch 0, and microbatches up to 999999999"),
    ("0UNSHARD\n", {}, " names no microbatch; say how many there are with microbatches="),
    ("0F0,0F1\n", {"microbatches": 1}, r", row 1 \(rank 0\), column 2: 0F1 is of microbatch 1, and there are"),
    ("0F0\n", {"microbatches": 0}, "microbatches=0: give a whole number, 1 or more"),
    ("0F0\n", {"microbatches": True}, "microbatches=True: give a whole number"),
    ("0F0\n", TWO, " has 1 rows, and the placement 2 ranks; write one row per rank"),
    ("0F0\n1F0\n\n", TWO, " has 3 rows, and the placement 2 ranks"),
    ("0F0\n1F0,,2F0\n", TWO, r", row 2 \(rank 1\), column 3: 2F0 is of stage 2, and the placement"),
    ("0F0\n0F0\n", TWO, r", row 2 \(rank 1\), column 1: 0F0 is of stage 0, which the placement"),
    ('0F0,"0B0\n', {}, ", line 1: unexpected end of data"),
    ('0F0\n1F0,"1F1"x\n', {}, r", line 2: ',' expected after '\"'"),
    ("0F0,0F1" + "0" * 200_000, {}, r", line 1: field larger than field limit"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "given", "message"), REFUSED, ids=[f"{text[:20]!r}" for text, *_ in REFUSED])
def test_what_is_no_schedule_is_refused(text, given, message) -> None:
    with pytest.raises(ScheduleError, match=f"^(odd.csv)?{message}"):
        csv_format.read(text, **given, source="odd.csv")


def test_schedules_go_through_files(tmp_path) -> None:
    schedule = Schedule(made(ONE_F_ONE_B), "mine")
    path = tmp_path / "new" / "folders" / "1f1b.csv"
    schedule.to_csv(path)
    assert path.read_bytes() == TEXT.encode()
    read = Schedule.from_csv(str(path))
    assert read == schedule
    assert (read.name, Schedule.from_csv(path, name="theirs").name) == ("1f1b", "theirs")
    both = Schedule.of(placement.bidirectional(2), 3, [["0F0", "3F2"], ["1F0", "2F2"]])
    both.to_csv(path)
    assert Schedule.from_csv(path, both.placement, microbatches=3) == both
    assert Schedule.from_csv(path, both.placement, microbatches=3).placement.copies == 2


def test_a_file_that_cannot_be_read_is_refused(tmp_path) -> None:
    with pytest.raises(ScheduleError, match=rf"cannot read {re.escape(str(tmp_path))}/none.csv: .*No such file"):
        Schedule.from_csv(tmp_path / "none.csv")
    with pytest.raises(ScheduleError, match="cannot read .*: .*Is a directory"):
        Schedule.from_csv(tmp_path)
    (tmp_path / "utf16.csv").write_text(TEXT, encoding="utf-16")
    with pytest.raises(ScheduleError, match="cannot read .*utf16.csv: 'utf-8' codec can't decode"):
        Schedule.from_csv(tmp_path / "utf16.csv")
    (tmp_path / "odd.csv").write_text("0F0,0F1\n1F0,1F\n")
    with pytest.raises(ScheduleError, match=r"odd.csv, row 2 \(rank 1\), column 2: 'F' of stage 1"):
        Schedule.from_csv(tmp_path / "odd.csv")


def test_a_schedule_is_described_in_a_line() -> None:
    schedule = Schedule.of(placement.v(1), 2, [["0F0", "1F0", "(0F1;1B0)OVERLAP_F_B", "0UNSHARD"]], name="v")
    assert repr(schedule) == "Schedule(v: 1 ranks, 2 stages, 2 microbatches; 2 F 1 OVERLAP_F_B 1 UNSHARD)"
    assert repr(Schedule.of(placement.linear(2), 1, [[], []])) == (
        "Schedule(2 ranks, 2 stages, 1 microbatches; no actions)"
    )


def test_operations_of_users_are_named_in_the_file_and_said_again_when_it_is_read(tmp_path) -> None:
    offload = Operation("OFFLOAD", after="F")
    rows = [["0F0", "0OFFLOAD0", "0B0"]]
    schedule = Schedule(made(rows, 1), operations=(offload,))
    schedule.to_csv(tmp_path / "offload.csv")
    assert Schedule.from_csv(tmp_path / "offload.csv", operations=[offload]) == schedule
    assert Schedule.from_csv(tmp_path / "offload.csv").programs == schedule.programs
