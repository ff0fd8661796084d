import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings

from annopipe.simulation import Network, ProgramTimeline, Task, run
from tests.simulation.programs import NETWORKS, overlapped, programs


def near(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-9, abs=1e-9)


def slow_exposure(timeline: ProgramTimeline) -> tuple[float, float, dict[tuple[str, str], float]]:
    """Communication, exposed communication, and exposed by lane and region, moment by moment from the spans alone."""
    tasks = timeline.trace.tasks
    transfers = [span for span in timeline.spans if span.track.startswith("comm")]
    stalls = [span for span in timeline.spans if span.track == "compute" and span.kind == "wait"]
    comm = exposed = 0.0
    charged: dict[tuple[str, str], float] = {}
    moments = sorted({moment for span in timeline.spans for moment in (span.start, span.end)})
    for start, end in itertools.pairwise(moments):
        middle = (start + end) / 2
        active = sorted((span for span in transfers if span.start < middle < span.end), key=lambda span: span.position)
        comm += (end - start) * bool(active)
        for stall in (span for span in stalls if span.start < middle < span.end):
            launch = tasks[stall.position].launch
            waited = [span for span in active if span.position == launch]
            same_queue = [span for span in active if tasks[span.position].queue == tasks[launch].queue]
            guilty = (waited or same_queue)[0]
            exposed += end - start
            key = (guilty.lane, guilty.region)
            charged[key] = charged.get(key, 0.0) + end - start
        if active and middle > timeline.trace.ends[-1]:
            last = min(active, key=lambda span: span.end)
            exposed += end - start
            charged[last.lane, last.region] = charged.get((last.lane, last.region), 0.0) + end - start
    return comm, exposed, charged


@settings(max_examples=150, deadline=None)
@given(programs(), NETWORKS)
def test_hidden_and_exposed_agree_with_arithmetic_on_the_spans(program, network):
    timeline = run(program, network)
    comm, exposed, charged = slow_exposure(timeline)
    assert timeline.comm_time == near(comm)
    assert timeline.exposed_comm == near(exposed)
    assert timeline.hidden_comm == near(comm - exposed)
    for region in timeline.regions:
        assert region.exposed == near(charged.get((region.lane, region.region), 0.0))
        assert region.hidden == near(region.comm - region.exposed)
        assert 0.0 <= region.hidden <= region.comm + 1e-9
    assert math.fsum(region.exposed for region in timeline.regions) == near(timeline.exposed_comm)


def test_regions_come_in_order_of_first_launch():
    assert [(row.lane, row.region) for row in run(overlapped()).regions] == [
        ("B", "block1/moe/combine"),
        ("F", "block0/moe/router"),
        ("F", "block0/moe/dispatch"),
        ("B", "block1/reduce"),
    ]


def test_transfer_in_front_is_charged_while_the_waited_one_is_queued():
    program = [Task("x", "launch", 3.0, "one"), Task("y", "launch", 1.0, "two"), Task("w", "wait", launch=1)]
    assert [(row.region, row.comm, row.exposed) for row in run(program).regions] == [
        ("one", 3.0, 3.0),
        ("two", 1.0, 1.0),
    ]


def test_waited_transfer_is_charged_while_another_moves_beside_it():
    program = [Task("x", "launch", 2.0, "one"), Task("y", "launch", 2.0, "two"), Task("w", "wait", launch=1)]
    rows = run(program, Network(in_flight=2)).regions
    assert [(row.region, row.comm, row.exposed) for row in rows] == [("one", 4.0, 0.0), ("two", 4.0, 4.0)]


def test_front_most_of_several_in_flight_is_charged():
    program = [Task(name, "launch", 2.0, name) for name in "abc"] + [Task("w", "wait", launch=2)]
    rows = run(program, Network(in_flight=2)).regions
    assert [(row.region, row.exposed) for row in rows] == [("a", 4.0), ("b", 0.0), ("c", 2.0)]


def test_what_moves_after_the_last_task_is_exposed():
    timeline = run([Task("mm", "compute", 1.0), Task("x", "launch", 3.0, "reduce")])
    assert (timeline.exposed_comm, timeline.hidden_comm) == (3.0, 0.0)
    timeline = run([Task("x", "launch", 3.0, "reduce"), Task("mm", "compute", 1.0)])
    assert (timeline.exposed_comm, timeline.hidden_comm) == (2.0, 1.0)
    assert timeline.regions[0].exposed == 2.0


def why(program: list[Task], network: Network | None = None) -> dict[str, tuple[str, str]]:
    return {row.region: (row.why, row.reason) for row in run(program, network or Network()).regions}


def test_exposed_region_says_mainly_why():
    assert why(overlapped()) == {
        "block1/moe/combine": ("nothing left to run", "nothing left to run: what could run beside it has run"),
        "block0/moe/router": ("", ""),
        "block0/moe/dispatch": (
            "its input came late",
            "launched late: needs item (F/block0/moe/router), a host synchronisation, which ended at 6.25 s",
        ),
        "block1/reduce": ("", ""),
    }


def test_region_in_front_of_the_waited_one_is_exposed_because_others_queue_behind_it():
    program = [Task("x", "launch", 3.0, "one"), Task("y", "launch", 1.0, "two"), Task("w", "wait", launch=1)]
    assert why(program) == {
        "one": ("others queue behind it", "y (two), which the thread waits for, is queued behind it"),
        "two": ("queued behind others", "queued behind x (one)"),
    }


def test_region_that_moves_after_the_last_task_says_so():
    assert why([Task("x", "launch", 3.0, "reduce")]) == {
        "reduce": ("after the last task", "still moves after the last task")
    }


def test_cause_of_most_of_the_exposed_time_is_the_main_reason():
    program = [
        Task("x", "launch", 3.0, "dispatch"),
        Task("w", "wait", launch=0),
        Task("mm", "compute", 2.0),
        Task("y", "launch", 1.0, "dispatch"),
        Task("v", "wait", launch=3),
    ]
    assert why(program)["dispatch"][0] == "waited early"
    program[3] = Task("y", "launch", 9.0, "dispatch", after=(2,))
    assert why(program)["dispatch"][0] == "nothing left to run"


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_a_region_has_a_reason_when_and_only_when_it_is_exposed(program, network):
    for row in run(program, network).regions:
        assert bool(row.why) == bool(row.reason) == (row.exposed > 0)


def test_no_communication_is_all_hidden():
    timeline = run([Task("mm", "compute", 1.0)])
    assert (timeline.comm_time, timeline.exposed_comm, timeline.hidden_share) == (0.0, 0.0, 1.0)
    assert timeline.regions == ()
    assert run([Task("x", "launch", 0.0)]).regions[0].hidden_share == 1.0
