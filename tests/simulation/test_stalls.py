from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from annopipe.simulation import Network, Stall, Task, run
from annopipe.simulation.dependence import Dependence
from annopipe.simulation.trace import Trace
from tests.simulation.programs import NETWORKS, programs


def only_stall(program: Sequence[Task], network: Network | None = None) -> Stall:
    (stall,) = run(program, network or Network()).stalls
    return stall


def test_stall_names_wait_launch_place_and_time():
    stall = only_stall([Task("x", "launch", 2.0, "moe/dispatch", "F"), Task("w", "wait", launch=0)])
    assert (stall.wait, stall.launch, stall.region, stall.lane, stall.start, stall.end) == (
        "w",
        "x",
        "moe/dispatch",
        "F",
        0.0,
        2.0,
    )


def test_wait_that_does_not_block_is_no_stall():
    assert run([Task("x", "launch", 2.0), Task("a", "compute", 2.0), Task("w", "wait", launch=0)]).stalls == ()


def test_end_when_every_later_task_needs_it():
    stall = only_stall(
        [
            Task("router", "compute", 1.0, "moe/router"),
            Task("dispatch", "launch", 2.0, "moe/dispatch", after=(0,)),
            Task("w", "wait", launch=1, after=(1,)),
            Task("view", "compute", 0.0, after=(2,)),
            Task("experts", "compute", 1.0, "moe/experts", after=(3,)),
        ]
    )
    assert (stall.cause, stall.blocker) == ("end", "")
    assert stall.reason == "nothing left to run: every later task needs it"


def test_end_when_nothing_holds_the_launch_and_all_else_has_run():
    stall = only_stall([Task("x", "launch", 3.0), Task("a", "compute", 1.0), Task("w", "wait", launch=0)])
    assert stall.cause == "end"
    assert stall.reason == "nothing left to run: what could run beside it has run"


def test_input_when_the_launch_had_to_come_late():
    stall = only_stall(
        [
            Task("attention", "compute", 2.0, "block0/attention", "F"),
            Task("dispatch", "launch", 4.0, "block0/dispatch", "F", after=(0,)),
            Task("experts_b", "compute", 3.0, "block1/experts", "B"),
            Task("w", "wait", lane="F", launch=1),
            Task("experts", "compute", 1.0, "block0/experts", "F", after=(3,)),
        ]
    )
    assert (stall.cause, stall.blocker) == ("input", "attention")
    assert stall.reason == "launched late: needs attention (F/block0/attention), which ended at 2 s"


def test_input_looks_through_tasks_that_take_no_time_to_the_last_to_end():
    stall = only_stall(
        [
            Task("early", "compute", 1.0),
            Task("late", "compute", 1.0),
            Task("view", "compute", 0.0, after=(1,)),
            Task("cat", "compute", 0.0, after=(0, 2)),
            Task("x", "launch", 4.0, after=(3,)),
            Task("other", "compute", 1.0),
            Task("w", "wait", launch=4),
        ]
    )
    assert stall.reason == "launched late: needs late, which ended at 2 s"


def test_input_can_be_a_transfer():
    program = [
        Task("combine", "launch", 2.0, "combine", "B"),
        Task("w", "wait", launch=0),
        Task("dispatch", "launch", 3.0, "dispatch", "B", after=(1,)),
        Task("other", "compute", 1.0),
        Task("v", "wait", launch=2),
    ]
    first, second = run(program).stalls
    assert first.cause == "early"
    assert second.reason == "launched late: needs combine (B/combine), which ended at 2 s"


def test_input_names_a_host_read_as_host_synchronisation():
    stall = only_stall(
        [
            Task("item", "host", 1.0, "router", "F"),
            Task("dispatch", "launch", 4.0, after=(0,)),
            Task("other", "compute", 1.0),
            Task("w", "wait", launch=1),
        ]
    )
    assert stall.reason == "launched late: needs item (F/router), a host synchronisation, which ended at 1 s"


def test_order_when_the_launch_was_ready_before_it_was_issued():
    stall = only_stall(
        [
            Task("attention", "compute", 1.0, lane="F"),
            Task("short", "compute", 0.5, lane="B"),
            Task("long", "compute", 2.5, lane="B"),
            Task("x", "launch", 3.0, lane="F", after=(0,)),
            Task("w", "wait", launch=3),
        ]
    )
    assert (stall.cause, stall.blocker) == ("order", "long")
    assert stall.reason == "launched late: ready at 1 s, issued behind long (B)"


def test_order_looks_past_a_wait_that_came_later_than_its_transfer():
    stall = only_stall(
        [
            Task("combine", "launch", 1.0),
            Task("long", "compute", 4.0),
            Task("w", "wait", launch=0),
            Task("dispatch", "launch", 3.0, after=(2,)),
            Task("v", "wait", launch=3),
        ]
    )
    assert stall.reason == "launched late: ready at 1 s, issued behind long"


def test_queue_names_the_transfer_in_front():
    program = [
        Task("first", "launch", 3.0, "combine", "B", queue="ep"),
        Task("elsewhere", "launch", 0.5, queue="dp"),
        Task("second", "launch", 2.0, queue="ep"),
        Task("a", "compute", 2.0),
        Task("w", "wait", launch=2),
    ]
    stall = only_stall(program, Network(shared_link=False))
    assert (stall.cause, stall.blocker) == ("queue", "first")
    assert stall.reason == "queued behind first (B/combine)"


def test_link_names_the_transfer_that_moved_beside_it_longest():
    program = [
        Task("short", "launch", 1.0, queue="tp"),
        Task("reduce", "launch", 5.0, "reduce", "B", queue="dp"),
        Task("x", "launch", 3.0, queue="ep"),
        Task("a", "compute", 3.0),
        Task("w", "wait", launch=2),
    ]
    stall = only_stall(program)
    assert (stall.start, stall.end, stall.cause) == (3.0, 7.0, "link")
    assert stall.reason == "shares the link with reduce (B/reduce)"


def test_early_names_work_that_could_have_run():
    stall = only_stall(
        [
            Task("x", "launch", 3.0),
            Task("w", "wait", launch=0),
            Task("needs", "compute", 1.0, after=(1,)),
            Task("view", "compute", 0.0),
            Task("free", "compute", 2.0, "experts", "B", "weight_grad", after=(3,)),
        ]
    )
    assert (stall.cause, stall.blocker) == ("early", "free")
    assert stall.reason == "waited early: free (B/experts) does not need it and runs after the wait"


def test_early_counts_work_behind_a_transfer_that_another_order_would_have_launched():
    program = [
        Task("x", "launch", 3.0),
        Task("w", "wait", launch=0),
        Task("y", "launch", 1.0, "combine", "B"),
        Task("v", "wait", launch=2),
        Task("experts_b", "compute", 4.0, lane="B", after=(3,)),
    ]
    first, second = run(program).stalls
    assert first.reason == "waited early: y (B/combine) does not need it and runs after the wait"
    assert second.reason == "launched late: ready at 0 s, issued behind w"


def test_early_excuses_work_that_needs_another_transfer_in_flight():
    program = [
        Task("attention", "compute", 1.0),
        Task("x", "launch", 3.0, after=(0,)),
        Task("y", "launch", 1.0),
        Task("w", "wait", launch=1),
        Task("v", "wait", launch=2),
        Task("free", "compute", 9.0, after=(4,)),
    ]
    assert run(program).stalls[0].reason == "launched late: needs attention, which ended at 1 s"


def test_largest_cause_is_the_reason():
    program = [Task("x", "launch", 1.0), Task("y", "launch", 3.0), Task("w", "wait", launch=1), Task("a", "compute")]
    assert only_stall(program).cause == "end"  # 1 s behind x, 3 s of its own
    program[3] = Task("a", "compute", 3.5)
    assert only_stall(program).cause == "early"


def test_host_read_right_behind_the_wait_is_named():
    counts = [
        Task("counts", "launch", 1.0),
        Task("w", "wait", launch=0),
        Task("sum", "compute", 0.1, after=(1,)),
        Task("item", "host", 0.1, "router", "F", after=(2,)),
    ]
    stall = only_stall(counts)
    assert stall.host_sync == "item"
    assert stall.reason == (
        "nothing left to run: every later task needs it; "
        "item (F/router) right behind the wait is a host synchronisation"
    )


@pytest.mark.parametrize(
    "between", [Task("free", "compute", 0.1), Task("y", "launch", 0.1, after=(1,)), Task("item", "host", 0.1)]
)
def test_host_read_that_is_not_right_behind_the_wait_is_not_named(between):
    program = [Task("x", "launch", 1.0), Task("w", "wait", launch=0), between, Task("item", "host", 0.1, after=(1,))]
    assert run(program).stalls[0].host_sync == ""


@settings(max_examples=100, deadline=None)
@given(programs(), NETWORKS)
def test_every_stall_has_a_reason_and_together_they_are_the_exposed_time(program, network):
    timeline = run(program, network)
    after_the_end = timeline.makespan - (timeline.trace.ends[-1] if program else 0.0)
    assert sum(stall.seconds for stall in timeline.stalls) + after_the_end == pytest.approx(timeline.exposed_comm)
    heads = {
        "queue": "queued behind ",
        "link": "shares the link with ",
        "early": "waited early: ",
        "order": "launched late: ready at ",
        "input": "launched late: needs ",
        "end": "nothing left to run: ",
    }
    for stall in timeline.stalls:
        assert stall.reason.startswith(heads[stall.cause])
        assert bool(stall.blocker) == (stall.cause != "end")


def needs(trace: Trace, position: int, transfers: set[int]) -> bool:
    """Whether a task needs one of these transfers (by launch), followed back one result at a time."""
    task = trace.tasks[position]
    before = (*task.after, task.launch) if task.kind == "wait" else task.after
    return task.launch in transfers or any(needs(trace, other, transfers) for other in before)


@settings(max_examples=100, deadline=None)
@given(programs(max_size=14), NETWORKS)
def test_dependence_agrees_with_following_each_result_back(program, network):
    trace = run(program, network).trace
    dependence = Dependence(trace)
    for number, wait in enumerate(trace.stalled):
        launch, stalled = trace.tasks[wait].launch, trace.starts[wait]
        seconds = [0.0 if t.kind == "wait" else trace.ends[p] - trace.starts[p] for p, t in enumerate(trace.tasks)]
        later = [p for p in range(launch + 1, len(program)) if seconds[p]]
        uses = [needs(trace, p, {launch}) or reaches(trace, p, launch) for p in later]
        assert dependence.by_all_later(number) == all(uses)
        unfinished = {p for p, transfer in trace.transfers.items() if p < wait and transfer.end > stalled}
        beside = [p for p in range(wait + 1, len(program)) if not needs(trace, p, unfinished)]
        total = min(sum(seconds[p] for p in beside), trace.ends[wait] - stalled)
        found = dependence.work_beside(number)
        assert (found.seconds if found else 0.0) == pytest.approx(total)
        if found and total:
            assert found.first == next(p for p in beside if seconds[p] or trace.tasks[p].kind == "launch")


def reaches(trace: Trace, position: int, target: int) -> bool:
    """Whether a task uses the result of another, here a launch's handle, directly or through others."""
    task = trace.tasks[position]
    before = (*task.after, task.launch) if task.kind == "wait" else task.after
    return any(other == target or reaches(trace, other, target) for other in before)
