import pytest
from hypothesis import given, settings

from annopipe.simulation import HostSync, Network, Task, makespan, run
from annopipe.simulation.trace import Trace
from tests.simulation.programs import NETWORKS, overlapped, programs

ROUTER = Task("router", "compute", 1.0, "moe/router", "F")
DATA = Task("combine", "launch", 4.0, "moe/combine", "B", queue="ep")


def counts_behind_data(*, small: float = 0.1) -> list[Task]:
    """Counts are ready at 1, issued at 2, and move from 4 to 4.5; the host has them at 4.5 + small."""
    return [
        DATA,
        ROUTER,
        Task("attention", "compute", 1.0, "attention", "B"),
        Task("counts", "launch", 0.5, "moe/dispatch", "F", queue="ep", after=(1,)),
        Task("wait", "wait", lane="F", launch=3, after=(3,)),
        Task("sum", "compute", small, "moe/dispatch", "F", after=(4,)),
        Task("item", "host", 0.25, "moe/dispatch", "F", after=(5,)),
        Task("dispatch", "launch", 2.0, "moe/dispatch", "F", queue="ep", after=(6,)),
        Task("wait_dispatch", "wait", lane="F", launch=7, after=(7,)),
        Task("experts", "compute", 1.0, "moe/experts", "F", after=(8,)),
    ]


def only_sync(program: list[Task], network: Network | None = None) -> HostSync:
    (sync,) = run(program, network or Network()).host_syncs
    return sync


def test_count_exchange_says_when_it_was_ready_issued_and_what_it_queued_behind():
    sync = only_sync(counts_behind_data())
    assert (sync.exchange, sync.reads, sync.queue, sync.place) == ("counts", ("item",), "ep", "F/moe/dispatch")
    assert (sync.ready, sync.issued, sync.late) == (1.0, 2.0, 1.0)
    assert (sync.blocked_from, sync.stalled, sync.reading, sync.blocked) == (2.0, 2.5, 0.25, 2.75)
    assert (sync.queued, sync.behind) == (2.0, "combine (B/moe/combine)")
    assert (sync.exchange_position, sync.read_positions) == (3, (6,))
    assert sync.sentence == (
        "counts, read by item: ready at 1 s, issued 1 s later, queued 2 s behind combine (B/moe/combine), stalled 2.5 s"
    )


def test_own_group_saves_what_a_simulation_with_a_second_queue_says():
    timeline = run(counts_behind_data())
    # Sharing the link from 2 on, counts end at 3 and combine at 4.5. The read ends at 3.35; dispatch queues behind
    # combine and ends at 6.5, where it ended at 4.85 + 2 before.
    assert timeline.makespan == pytest.approx(7.85)
    assert timeline.own_group_saving == pytest.approx(0.35)
    own_link = run(counts_behind_data(), Network(shared_link=False))
    assert own_link.own_group_saving == pytest.approx(7.85 - 7.0)


def test_own_group_saves_nothing_when_no_count_exchange_is_behind_data():
    program = counts_behind_data()
    program[0] = Task("combine", "compute", 4.0)
    assert run(program).host_syncs[0].behind == ""
    assert run(program).own_group_saving == 0.0


def test_own_group_takes_a_name_that_no_other_group_has():
    program = [*counts_behind_data(), Task("late", "launch", 1.0, lane="F", queue="counts of ep")]
    assert run(program).own_group_saving == pytest.approx(0.35)


def test_exchange_behind_another_count_exchange_is_not_behind_data():
    program = [
        Task("counts_b", "launch", 1.0, lane="B", queue="ep"),
        Task("counts_f", "launch", 1.0, lane="F", queue="ep"),
        Task("w", "wait", launch=0),
        Task("item_b", "host", 0.1, lane="B", after=(2,)),
        Task("v", "wait", launch=1),
        Task("item_f", "host", 0.1, lane="F", after=(4,)),
    ]
    first, second = run(program).host_syncs
    assert (first.queued, second.queued, second.behind) == (0.0, 1.0, "")
    assert "queued 1 s behind other count exchanges" in second.sentence
    assert run(program).own_group_saving == 0.0


def test_read_behind_large_computation_reads_no_count_exchange():
    sync = only_sync(counts_behind_data(small=0.6))
    assert (sync.exchange, sync.reads, sync.stalled, sync.queued) == ("", ("item",), 0.0, 0.0)
    assert sync.ready == pytest.approx(5.1)
    assert sync.sentence == "item: ready at 5.1 s, read at once"


def test_read_after_the_next_launch_of_the_lane_reads_no_count_exchange():
    program = counts_behind_data()
    program.insert(6, Task("other", "launch", 0.0, lane="F", queue="dp"))
    assert {sync.exchange for sync in run(program[:8]).host_syncs} == {""}
    program[6] = Task("other", "launch", 0.0, lane="B", queue="dp")
    assert {sync.exchange for sync in run(program[:8]).host_syncs} == {"counts"}


def test_reads_of_one_exchange_are_one_synchronisation():
    program = counts_behind_data()[:7]
    program += [Task("item_1", "host", 0.5, "moe/dispatch", "F", after=(5,)) for _ in range(2)]
    sync = only_sync(program)
    assert (sync.reads, sync.reading, sync.stalled) == (("item", "item_1", "item_1"), 1.25, 2.5)
    assert "counts, read by item and 2 more: " in sync.sentence


def test_reads_of_what_the_rank_computed_itself_are_joined_up_to_a_launch_or_another_region():
    read, elsewhere = Task("item", "host", 0.5, "router", "F"), Task("item", "host", 0.5, "experts", "F")
    launch = Task("x", "launch", 1.0, lane="B")
    program = [ROUTER, read, ROUTER, read, launch, read, elsewhere]
    assert [sync.read_positions for sync in run(program).host_syncs] == [(1, 3), (5,), (6,)]


def test_host_read_that_came_late_says_since_when_its_input_was_there():
    program = [ROUTER, Task("long", "compute", 2.0), Task("item", "host", 0.5, after=(0,))]
    assert only_sync(program).sentence == "item: ready at 1 s, read 2 s later"
    assert only_sync(program).place == "item"


def test_program_without_host_tasks_has_none():
    assert run([ROUTER, DATA]).host_syncs == ()


@settings(max_examples=100, deadline=None)
@given(programs(), NETWORKS)
def test_every_host_task_is_named_and_exchanges_follow_their_definition(program, network):
    timeline = run(program, network)
    trace = timeline.trace
    hosts = {position for position, task in enumerate(program) if task.kind == "host"}
    assert {read for sync in timeline.host_syncs for read in sync.read_positions} == hosts
    for sync in timeline.host_syncs:
        assert sync.ready <= sync.issued + 1e-9
        assert sync.blocked >= 0.0
        if sync.exchange:
            assert sync.exchange == program[sync.exchange_position].name
            assert sync.queued == trace.transfers[sync.exchange_position].queued
    for read in hosts:
        found = {s.exchange_position for s in timeline.host_syncs if read in s.read_positions} - {-1}
        assert found == {p for p in trace.transfers if p < read and is_count_exchange(trace, p, read)}


def is_count_exchange(trace: Trace, launch: int, read: int) -> bool:
    """The definition, word by word."""
    lane = trace.tasks[launch].lane
    next_launch = (
        p for p in range(launch + 1, read) if trace.tasks[p].kind == "launch" and trace.tasks[p].lane == lane
    )
    return next(next_launch, None) is None and comes_from(trace, read, launch)


def comes_from(trace: Trace, position: int, launch: int) -> bool:
    for needed in trace.tasks[position].after:
        task = trace.tasks[needed]
        if task.kind == "wait" and task.launch == launch:
            return True
        small = task.kind == "compute" and task.duration <= trace.tasks[launch].duration
        if small and comes_from(trace, needed, launch):
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_saving_is_the_difference_of_two_simulations(program, network):
    timeline = run(program, network)
    exchanges = {sync.exchange_position for sync in timeline.host_syncs} - {-1}
    if any(sync.behind for sync in timeline.host_syncs):
        own = [
            Task(t.name, t.kind, t.duration, queue=f"{t.queue} own", launch=t.launch, latency=t.latency, issue=t.issue)
            if position in exchanges
            else t
            for position, t in enumerate(program)
        ]
        assert timeline.own_group_saving == pytest.approx(timeline.makespan - makespan(own, network))
    else:
        assert timeline.own_group_saving == 0.0


def test_summary_says_what_a_group_of_their_own_saves():
    text = " ".join(str(run(counts_behind_data())).split())
    assert (
        "count exchanges queue behind data: in this order a process group of their own would save 350 ms of 7.85 s"
    ) in text


def test_summary_says_when_a_group_of_their_own_saves_nothing():
    assert "but in this order a process group of their own would save nothing" in " ".join(
        str(run(overlapped())).split()
    )


def test_summary_lists_the_longest_and_counts_the_rest():
    program: list[Task] = []
    for number in range(5):
        program += [Task(f"item{number}", "host", 1.0 + number, f"block{number}"), Task("mm", "compute", 1.0)]
    lines = str(run(program)).splitlines()
    head = lines.index("host synchronisations, the longest 3 of 5")
    assert [line.split()[-1] for line in lines[head + 1 : head + 6 : 2]] == ["block4", "block3", "block2"]
