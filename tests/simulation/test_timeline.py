import json

import pytest
from hypothesis import given, settings

from annopipe.simulation import Network, Span, Task, run
from annopipe.simulation.spans import lay_out
from tests.simulation.programs import NETWORKS, overlapped, programs


def test_numbers_of_a_small_case():
    timeline = run(
        [
            Task("x", "launch", 3.0, queue="ep", issue=0.5),
            Task("a", "compute", 1.0),
            Task("item", "host", 0.5),
            Task("w", "wait", launch=0),
            Task("b", "compute", 0.5),
        ]
    )
    assert (timeline.makespan, timeline.window) == (4.0, 4.0)
    assert (timeline.compute_time, timeline.host_time, timeline.issue_time) == (1.5, 0.5, 0.5)
    assert timeline.bubble == 1.5 / 4.0
    assert (timeline.comm_time, timeline.exposed_comm, timeline.hidden_comm) == (3.0, 1.5, 1.5)
    assert timeline.hidden_share == 0.5


def test_computation_counts_for_as_long_as_it_took_beside_transfers():
    program = [Task("x", "launch", 3.0), Task("a", "compute", 2.0), Task("w", "wait", launch=0)]
    timeline = run(program, Network(interference=0.25))
    assert (timeline.compute_time, timeline.interference_time) == (2.5, 0.5)
    assert (timeline.makespan, timeline.bubble) == (3.0, pytest.approx(0.5 / 3.0))
    assert (timeline.hidden_comm, timeline.exposed_comm) == (2.5, 0.5)
    assert run(program).interference_time == 0.0


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_thread_is_busy_or_stalled_until_it_has_ended(program, network):
    timeline = run(program, network)
    stalled = sum(stall.seconds for stall in timeline.stalls)
    busy = timeline.compute_time + timeline.host_time + timeline.issue_time
    assert busy + stalled == pytest.approx(timeline.trace.ends[-1] if program else 0.0)


def test_bubble_counts_the_time_after_the_last_task():
    assert run([Task("a", "compute", 1.0), Task("x", "launch", 3.0)]).bubble == 0.75


def test_empty_timeline_has_numbers_too():
    timeline = run([])
    assert (timeline.makespan, timeline.window, timeline.bubble, timeline.hidden_share) == (0.0, 0.0, 0.0, 1.0)
    assert (timeline.spans, timeline.tracks, timeline.stalls, timeline.regions) == ((), (), (), ())


def test_spans_lie_on_compute_host_and_one_track_per_queue():
    assert [(s.track, s.name, s.kind, s.start, s.end) for s in run(overlapped()).spans] == [
        ("compute", "attention", "compute", 0.0, 3.0),
        ("compute", "counts", "launch", 3.0, 3.25),
        ("compute", "wait_combine_b", "wait", 3.25, 4.0),
        ("compute", "experts_b", "compute", 4.0, 6.0),
        ("compute", "experts_w", "compute", 6.25, 8.25),
        ("compute", "wait_dispatch", "wait", 8.25, 15.25),
        ("compute", "experts", "compute", 15.25, 17.75),
        ("host", "item", "host", 6.0, 6.25),
        ("comm ep", "combine_b", "launch", 0.0, 4.0),
        ("comm ep", "counts", "launch", 4.0, 4.5),
        ("comm ep", "dispatch", "launch", 6.25, 15.25),
        ("comm dp", "reduce", "launch", 8.25, 14.25),
    ]


def test_span_carries_region_lane_phase_and_position():
    span = next(span for span in run(overlapped()).spans if span.name == "experts_w")
    assert (span.region, span.lane, span.phase, span.position) == ("block1/moe/experts", "B", "weight_grad", 8)


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_rows_of_a_drawing_do_not_overlap_and_hold_every_span(program, network):
    timeline = run(program, network)
    assert sorted((s for track in timeline.tracks for s in track.spans), key=id) == sorted(timeline.spans, key=id)
    for track in timeline.tracks:
        for before, after in zip(track.spans, track.spans[1:], strict=False):
            assert before.end <= after.start
    assert timeline.window == pytest.approx(timeline.makespan)


def test_overlapping_transfers_get_rows_of_their_own():
    spans = [Span("comm", name, start, start + 2.0, "launch") for start, name in enumerate("abcd")]
    rows = [(track.label, [span.name for span in track.spans]) for track in lay_out(spans)]
    assert rows == [("comm", ["a", "c"]), ("comm #2", ["b", "d"])]


def test_dict_is_plain_data_with_all_that_there_is():
    timeline = run(overlapped(), Network(in_flight=2))
    data = timeline.to_dict()
    assert json.loads(timeline.to_json()) == json.loads(json.dumps(data))
    assert data["makespan"] == timeline.makespan
    assert data["exposed_comm"] == timeline.exposed_comm
    for name in ("spans", "stalls", "regions", "host_syncs"):
        rows = data[name]
        assert isinstance(rows, list)
        assert len(rows) == len(getattr(timeline, name)) > 0


def test_repr_is_short():
    assert repr(run(overlapped())) == "ProgramTimeline(13 tasks, makespan 17.75 s)"
