from annopipe.simulation import Network, Task, run
from annopipe.simulation.panels import panels_of
from tests.simulation.programs import overlapped


def test_thread_is_one_row_and_each_process_group_another():
    (panel,) = panels_of({"one": run(overlapped())})
    assert (panel.name, panel.makespan) == ("one", 17.75)
    assert [row.label for row in panel.rows] == ["thread", "comm ep", "comm dp"]
    assert [run.kind for run in panel.rows[0].runs] == [
        "compute",
        "launch",
        "wait",
        "compute",
        "host",
        "compute",
        "wait",
        "compute",
    ]
    assert panel.stalls == ((3.25, 4.0), (8.25, 15.25))


def test_transfers_that_move_at_the_same_time_get_rows_of_their_own():
    program = [Task(name, "launch", 1.0, queue="ep") for name in "abc"]
    (panel,) = panels_of({"": run(program, Network(in_flight=2))})
    assert [row.label for row in panel.rows] == ["thread", "comm ep", "comm ep #2"]


def test_headline_has_makespan_and_hidden_share():
    (panel,) = panels_of({"one": run(overlapped())})
    assert panel.headline == (
        "makespan 17.75 s   43% of 13.5 s communication hidden, 7.75 s exposed   computation 9.5 s   "
        "host 250 ms   issue 250 ms"
    )
    assert panels_of({"": run([])})[0].headline == "makespan 0 s   computation 0 s"


def test_notes_say_why_the_most_exposed_regions_are_exposed_largest_first():
    (panel,) = panels_of({"one": run(overlapped())})
    assert panel.notes == (
        (
            "7 s exposed  F/block0/moe/dispatch: launched late: needs item (F/block0/moe/router), "
            "a host synchronisation, which ended at 6.25 s"
        ),
        "750 ms exposed  B/block1/moe/combine: nothing left to run: what could run beside it has run",
    )


def test_notes_are_at_most_three_regions():
    program = [Task(f"x{number}", "launch", 1.0 + number, f"region{number}") for number in range(5)]
    notes = panels_of({"": run(program)})[0].notes
    assert [note.split(":")[0] for note in notes] == [
        f"{seconds} s exposed  region{number}" for seconds, number in ((5, 4), (4, 3), (3, 2))
    ]


def test_note_says_what_a_group_of_their_own_saves_count_exchanges():
    program = [
        Task("combine", "launch", 2.0, queue="ep", lane="B"),
        Task("counts", "launch", 0.5, queue="ep", lane="F"),
        Task("wait", "wait", launch=1, lane="F"),
        Task("item", "host", 0.1, lane="F", after=(2,)),
        Task("experts", "compute", 3.0, lane="F", after=(3,)),
    ]
    assert "a process group of their own would save 1.5 s of 5.6 s" in panels_of({"": run(program)})[0].notes[-1]
