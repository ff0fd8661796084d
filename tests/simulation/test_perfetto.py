import json
import math
from typing import Any

import pytest
from hypothesis import given, settings

from annopipe.simulation import Network, run
from annopipe.simulation.perfetto import events
from tests.simulation.programs import NETWORKS, overlapped, programs


def test_file_is_a_chrome_trace_and_the_same_each_time(tmp_path):
    run(overlapped()).to_perfetto(tmp_path / "one.json")
    run(overlapped()).to_perfetto(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert json.loads((tmp_path / "one.json").read_text())["traceEvents"] == events(run(overlapped()))


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_same_spans_in_microseconds_on_named_threads(program, network):
    timeline = run(program, network)
    found = events(timeline)
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}  # type: ignore[index]
    assert list(names.values()) == [track.label for track in timeline.tracks]
    complete = [e for e in found if e["ph"] == "X"]
    expected = [(track.label, span) for track in timeline.tracks for span in track.spans]
    for event, (label, span) in zip(complete, expected, strict=True):
        assert (names[event["tid"]], event["name"], event["cat"]) == (label, span.name, span.kind)
        assert event["ts"] == span.start * 1e6
        assert math.isclose(event["dur"], span.seconds * 1e6, abs_tol=1e-6)  # type: ignore[arg-type]
        args = event["args"]
        assert isinstance(args, dict)
        assert (args["region"], args["lane"], args["phase"]) == (span.region, span.lane, span.phase)


def test_stalls_carry_their_reason():
    timeline = run(overlapped())
    reasons = [e["args"]["reason"] for e in events(timeline) if e.get("cat") == "wait"]  # type: ignore[index]
    assert reasons == [stall.reason for stall in timeline.stalls]


def test_host_tasks_say_what_they_read():
    timeline = run(overlapped())
    found = [e["args"]["host_sync"] for e in events(timeline) if e.get("cat") == "host"]  # type: ignore[index]
    assert found == [sync.sentence for sync in timeline.host_syncs]


@pytest.mark.parametrize("network", [Network(), Network(in_flight=2)])
def test_an_arrow_leads_from_each_transfer_to_what_waits_for_it(network):
    timeline = run(overlapped(), network)
    found: list[Any] = list(events(timeline))
    begins: dict[Any, Any] = {e["id"]: e for e in found if e["ph"] == "s"}
    ends: dict[Any, Any] = {e["id"]: e for e in found if e["ph"] == "f"}
    waits = [p for p, task in enumerate(timeline.trace.tasks) if task.kind == "wait"]
    assert waits[-1] not in begins  # it does not block, and nothing runs after it that the arrow could end at
    assert list(begins) == list(ends) == waits[:-1]
    for arrows in (begins, ends):
        for wait, arrow in arrows.items():
            inside = [e for e in found if e["ph"] == "X" and e["tid"] == arrow["tid"] and e["ts"] == arrow["ts"]]
            assert len(inside) == 1
            if arrows is begins:
                assert inside[0]["args"]["position"] == timeline.trace.tasks[wait].launch
