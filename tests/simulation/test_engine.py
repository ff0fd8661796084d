import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import OrderError
from annopipe.simulation import Network, ProgramTimeline, Task, makespan, run
from tests.simulation import reference
from tests.simulation.programs import NETWORKS, overlapped, programs


def moves(timeline: ProgramTimeline) -> dict[str, tuple[float, float]]:
    tasks = timeline.trace.tasks
    return {tasks[p].name: (transfer.start, transfer.end) for p, transfer in timeline.trace.transfers.items()}


def near(moment: Fraction) -> Any:
    return pytest.approx(float(moment), rel=1e-12, abs=1e-12)


def test_empty_program_takes_no_time():
    assert run([]).makespan == 0.0
    assert makespan([]) == 0.0


def test_thread_runs_tasks_one_after_the_other():
    timeline = run([Task("a", "compute", 1.0), Task("b", "host", 0.5), Task("c", "compute", 2.0)])
    assert timeline.trace.starts == (0.0, 1.0, 1.5)
    assert timeline.trace.ends == (1.0, 1.5, 3.5)


def test_transfer_runs_beside_computation():
    timeline = run([Task("x", "launch", 3.0), Task("a", "compute", 2.0), Task("w", "wait", launch=0)])
    assert timeline.makespan == 3.0
    assert timeline.trace.starts[2] == 2.0


def test_transfer_that_nobody_waits_for_counts_for_the_makespan():
    assert run([Task("a", "compute", 1.0), Task("x", "launch", 3.0)]).makespan == 4.0


def test_issue_time_occupies_the_thread_before_the_transfer_enters():
    timeline = run([Task("x", "launch", 3.0, issue=0.5), Task("a", "compute", 1.0)])
    assert moves(timeline) == {"x": (0.5, 3.5)}
    assert timeline.trace.starts == (0.0, 0.5)


def test_queue_keeps_order():
    timeline = run(
        [Task("x", "launch", 3.0, queue="ep"), Task("y", "launch", 1.0, queue="ep"), Task("w", "wait", launch=1)]
    )
    assert moves(timeline) == {"x": (0.0, 3.0), "y": (3.0, 4.0)}
    assert timeline.makespan == 4.0


def test_second_wait_for_the_same_launch_does_not_block():
    timeline = run([Task("x", "launch", 3.0), Task("w", "wait", launch=0), Task("v", "wait", launch=0)])
    assert timeline.trace.stalled == (1,)


def test_two_in_flight_share_the_link():
    program = [Task("x", "launch", 2.0), Task("y", "launch", 2.0), Task("z", "launch", 1.0)]
    assert moves(run(program, Network(in_flight=2))) == {"x": (0.0, 4.0), "y": (0.0, 4.0), "z": (4.0, 5.0)}
    assert moves(run(program, Network(in_flight=3))) == {"x": (0.0, 5.0), "y": (0.0, 5.0), "z": (0.0, 3.0)}


def test_late_comer_slows_down_only_what_is_left():
    program = [Task("x", "launch", 4.0, queue="ep"), Task("a", "compute", 2.0), Task("y", "launch", 1.0, queue="dp")]
    assert moves(run(program)) == {"x": (0.0, 5.0), "y": (2.0, 4.0)}


def test_queues_with_links_of_their_own_do_not_share():
    program = [Task("x", "launch", 4.0, queue="ep"), Task("y", "launch", 1.0, queue="dp")]
    for in_flight in (1, 2):
        timeline = run(program, Network(in_flight, shared_link=False))
        assert moves(timeline) == {"x": (0.0, 4.0), "y": (0.0, 1.0)}


def test_latency_takes_no_share_and_does_not_stretch():
    # y is in its latency until 1; then both move at half speed: x has 3 left, y has 1.
    program = [Task("x", "launch", 4.0, queue="ep"), Task("y", "launch", 2.0, queue="dp", latency=1.0)]
    assert moves(run(program)) == {"x": (0.0, 5.0), "y": (0.0, 3.0)}


def test_latency_occupies_the_place_in_flight():
    program = [Task("x", "launch", 2.0, latency=2.0), Task("y", "launch", 1.0)]
    assert moves(run(program)) == {"x": (0.0, 2.0), "y": (2.0, 3.0)}
    assert moves(run(program, Network(in_flight=2))) == {"x": (0.0, 2.0), "y": (0.0, 1.0)}


def test_transfer_that_never_shares_takes_its_duration_to_the_last_bit():
    program = [
        Task("a", "compute", 0.1),
        Task("x", "launch", 0.3, queue="ep", latency=0.1),
        Task("w", "wait", launch=1),
    ]
    program += [Task("y", "launch", 0.7, queue="dp", latency=0.2)]
    timeline = run(program, Network(in_flight=2))
    assert moves(timeline)["x"] == (0.1, 0.1 + 0.3)
    assert moves(timeline)["y"] == (0.1 + 0.3, 0.1 + 0.3 + 0.7)


def test_computation_beside_a_transfer_takes_longer_and_its_span_says_so():
    program = [Task("x", "launch", 3.0), Task("a", "compute", 2.0), Task("b", "compute", 1.0)]
    timeline = run(program, Network(interference=0.5))
    assert timeline.trace.ends == (0.0, 3.0, 4.0)
    assert [(span.start, span.end) for span in timeline.spans if span.kind == "compute"] == [(0.0, 3.0), (3.0, 4.0)]


def test_computation_goes_on_at_full_speed_when_the_last_transfer_has_ended():
    # Up to 3 only 2 of its 3 seconds are done; the last one is at full speed.
    program = [Task("x", "launch", 3.0), Task("a", "compute", 3.0)]
    assert run(program, Network(interference=0.5)).trace.ends == (0.0, 4.0)


def test_what_waits_in_a_queue_keeps_the_computation_slow():
    program = [Task("x", "launch", 1.0), Task("y", "launch", 2.0, latency=2.0), Task("a", "compute", 2.0)]
    assert run(program, Network(interference=1.0)).trace.ends[-1] == 3.5


def test_a_transfer_on_any_link_slows_computation_down():
    program = [Task("x", "launch", 1.0, queue="ep"), Task("y", "launch", 2.0, queue="dp"), Task("a", "compute", 2.0)]
    assert run(program, Network(1, shared_link=False, interference=1.0)).makespan == 3.0
    assert run(program, Network(1, shared_link=True, interference=1.0)).makespan == 3.5


def test_interference_leaves_host_tasks_and_issue_time_alone():
    program = [Task("x", "launch", 9.0), Task("item", "host", 1.0), Task("y", "launch", 1.0, issue=0.5)]
    assert run(program, Network(interference=1.0)).trace.ends == (0.0, 1.0, 1.5)


def test_interference_shrinks_what_overlap_gains():
    exchange, product, wait = Task("x", "launch", 2.0), Task("a", "compute", 2.0), Task("w", "wait", launch=0)
    program = [exchange, product, wait]
    for interference, overlapped_s in ((0.0, 2.0), (1.0, 3.0), (3.0, 3.5)):
        network = Network(interference=interference)
        assert makespan(program, network) == overlapped_s
        assert makespan(program, network, order=[0, 2, 1]) == 4.0


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(1, 3), st.booleans())
def test_no_interference_changes_no_bit_and_interference_never_helps_a_computation(program, in_flight, shared_link):
    plain = run(program, Network(in_flight, shared_link)).trace
    assert run(program, Network(in_flight, shared_link, interference=0.0)).trace == plain
    slowed = run(program, Network(in_flight, shared_link, interference=0.3)).trace
    for position, task in enumerate(program):
        took = slowed.ends[position] - slowed.starts[position]
        if task.kind == "compute":
            assert task.duration - 1e-12 <= took <= task.duration * 1.3 + 1e-12


@settings(max_examples=200, deadline=None)
@given(programs(), NETWORKS, st.sampled_from([None, 0.1, 0.16, 0.25]))
def test_same_times_as_the_reference(program, network, interference):
    if interference is not None:
        network = replace(network, interference=interference)
    trace = run(program, network).trace
    world = reference.simulate(program, network)
    for position in range(len(program)):
        assert trace.starts[position] == near(world.starts[position])
        assert trace.ends[position] == near(max(world.ends[position], world.starts[position]))
    for position, transfer in trace.transfers.items():
        moved = world.transfers[position]
        assert moved.start is not None
        assert moved.end is not None
        assert transfer.start == near(moved.start)
        assert transfer.end == near(moved.end)
    assert trace.makespan == near(world.now)


@settings(max_examples=60, deadline=None)
@given(programs(), st.booleans())
def test_exact_when_nothing_shares(program, shared_link):
    network = Network(1, shared_link=False, interference=1.0)
    if shared_link:
        program = [Task(t.name, t.kind, t.duration, launch=t.launch, issue=t.issue, latency=t.latency) for t in program]
        network = Network(1, shared_link=True, interference=3.0)
    world = reference.simulate(program, network)
    assert run(program, network).makespan == world.now


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_lean_makespan_equals_that_of_the_timeline(program, network):
    assert makespan(program, network) == run(program, network).makespan
    assert makespan(program, network, order=range(len(program))) == run(program, network).makespan


def test_order_takes_positions_of_the_program():
    program = [Task("x", "launch", 3.0), Task("w", "wait", launch=0), Task("a", "compute", 2.0)]
    assert makespan(program) == 5.0
    assert makespan(program, order=[0, 2, 1]) == 3.0
    assert makespan(program, order=[2]) == 2.0


@pytest.mark.parametrize("network", [Network(), Network(in_flight=2)])
def test_order_with_a_wait_before_its_launch_is_refused(network):
    program = [Task("x", "launch", 3.0, queue="ep"), Task("w", "wait", launch=0, lane="F")]
    with pytest.raises(OrderError, match=r"task 1, w \(F\), waits for a launch .* put the launch before its wait"):
        makespan(program, network, order=[1, 0])


def test_same_program_gives_an_equal_timeline():
    assert run(overlapped()) == run(overlapped())
    assert run(overlapped()).to_json() == run(overlapped()).to_json()


# Kernel times in us of the overlapped pair that DeepSeek published (profile-data, train.json), one line per layer:
# combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F).
DEEPSEEK_PAIR = (
    (4380, 4306, 5693, 6059, 7302, 6420, 4250, 9018, 2375, 7325),
    (5224, 4258, 5408, 5706, 7909, 6023, 4384, 9368, 2382, 8260),
    (6207, 4433, 5407, 7077, 7271, 7272, 5175, 9452, 2392, 9521),
    (7266, 4454, 4716, 7919, 7465, 5798, 4606, 9525, 2405, 9630),
)


def test_published_pair_takes_what_its_two_resource_simulation_says():
    program: list[Task] = []

    def add(name, kind, lane, us=0.0, launch=-1):
        program.append(Task(name, kind, us * 1e-6, lane=lane, launch=launch))
        return len(program) - 1

    combine_f, launched_b = -1, add("combine(B)", "launch", "B", DEEPSEEK_PAIR[0][0])
    for layer, (_, attn, mlp_b, dispatch, dispatch_b, mlp_w, mlp, attn_b, attn_w, combine) in enumerate(DEEPSEEK_PAIR):
        if layer:
            add("wait", "wait", "F", launch=combine_f)
        add("attn(F)", "compute", "F", attn)
        launched_f = add("dispatch(F)", "launch", "F", dispatch)
        add("wait", "wait", "B", launch=launched_b)
        add("mlp(B)", "compute", "B", mlp_b)
        launched_b = add("dispatch(B)", "launch", "B", dispatch_b)
        add("mlp(W)", "compute", "B", mlp_w)
        add("wait", "wait", "F", launch=launched_f)
        add("mlp(F)", "compute", "F", mlp)
        combine_f = add("combine(F)", "launch", "F", combine)
        add("wait", "wait", "B", launch=launched_b)
        add("attn(B)", "compute", "B", attn_b)
        if layer + 1 < len(DEEPSEEK_PAIR):
            launched_b = add("combine(B)", "launch", "B", DEEPSEEK_PAIR[layer + 1][0])
        add("attn(W)", "compute", "B", attn_w)
    add("wait", "wait", "F", launch=combine_f)
    timeline = run(program)
    assert timeline.makespan == pytest.approx(130.35e-3, abs=0.01e-3)
    assert timeline.compute_time == pytest.approx(129.52e-3, abs=0.01e-3)
    assert timeline.comm_time == pytest.approx(114.52e-3, abs=0.01e-3)


@pytest.mark.parametrize("network", [Network(), Network(in_flight=2), Network(in_flight=2, interference=0.2)])
def test_ten_thousand_tasks_take_less_than_fifty_milliseconds(network):
    step = [Task("x", "launch", 1e-3, queue="ep"), *[Task("a", "compute", 1e-4)] * 18]
    program: list[Task] = []
    for _ in range(500):
        program += [*step, Task("w", "wait", launch=len(program))]

    def seconds():
        begin = time.process_time()
        run(program, network)
        return time.process_time() - begin

    assert len(program) == 10_000
    assert min(seconds() for _ in range(5)) < 0.05
