from pathlib import Path

from hypothesis import given, settings

from annopipe.simulation import Network, Task, run
from tests.simulation.programs import NETWORKS, overlapped, programs

LONG = "model/" + "very_long_name/" * 20 + "dispatch"


def test_drawing_table_and_stalls_of_a_small_case():
    assert f"{run(overlapped())}\n" == Path(__file__).with_name("overlapped.txt").read_text(encoding="utf-8")


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_no_line_is_longer_than_a_hundred_columns(program, network):
    assert max(len(line) for line in str(run(program, network)).splitlines()) <= 100


def test_long_names_keep_to_the_width():
    program = [
        Task(LONG, "launch", 1 / 3, LONG, LONG, queue=LONG),
        Task(LONG, "compute", 1 / 7, LONG, LONG + "2", after=(0,)),
        Task(LONG, "wait", launch=0),
    ]
    lines = str(run(program)).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert any("dispatch" in line for line in lines)


def test_rows_are_as_wide_as_the_terminal_drawing():
    rows = [line for line in str(run(overlapped())).splitlines() if line.startswith(("compute ", "host  ", "comm "))]
    assert {len(row) for row in rows} == {100}


def test_lanes_with_the_same_first_letter_get_different_letters():
    program = [Task(lane, "compute", 1.0, lane=lane) for lane in ("F0", "F1", "F2", "f")]
    drawing = str(run(program)).splitlines()
    assert drawing[-1] == "F lane F0   1 lane F1   2 lane F2   0 lane f"


def test_headline_shows_the_time_of_starting_transfers_and_the_cost_of_interference():
    program = [Task("x", "launch", 3.0, issue=0.5), Task("a", "compute", 2.0)]
    head = str(run(program, Network(interference=0.25))).splitlines()[0]
    assert head == "makespan 3.5 s   computation 2.5 s   interference 500 ms   issue 500 ms   bubble 14%"


def test_program_without_time_has_only_a_headline():
    assert str(run([])) == "makespan 0 s   computation 0 s   bubble 0%"


def test_more_stalls_than_are_listed_are_counted():
    program: list[Task] = []
    for _ in range(7):
        program += [Task("x", "launch", 1.0, queue="ep"), Task("w", "wait", launch=len(program))]
    assert "the largest of 7 stalls" in str(run(program, Network()))
