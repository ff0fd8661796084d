"""Ranges that torch.profiler shows: one per action, and one per region inside the graphs."""

import json

import torch
from torch.profiler import ProfilerActivity, profile

import annopipe as ap
from annopipe.pipeline.profiling import is_profiled, with_ranges
from tests.pipeline.gradients import Block, loss_of


def trace_of(pipe, path):
    x, y = torch.ones(4, 6), torch.zeros(4, 6)
    with profile(activities=[ProfilerActivity.CPU]) as running:
        pipe.step(x, target=y)
    running.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation")]


def test_a_chrome_trace_has_a_range_per_action_with_its_regions_inside(tmp_path):
    schedule = ap.schedule("gpipe", ranks=1, microbatches=2)
    pipe = ap.Pipeline([Block(6, 0)], schedule, loss_fn=loss_of)
    pipe.prepare(torch.ones(4, 6), target=torch.zeros(4, 6))
    ranges = trace_of(pipe, tmp_path / "trace.json")
    actions = [event for event in ranges if event["name"] in ("0F0", "0F1", "0B0", "0B1")]
    assert [event["name"] for event in sorted(actions, key=lambda event: event["ts"])] == ["0F0", "0F1", "0B0", "0B1"]
    inside = [event for event in ranges if event["name"] == "annopipe/mlp"]
    assert inside
    for event in inside:
        assert any(a["ts"] <= event["ts"] and event["ts"] + event["dur"] <= a["ts"] + a["dur"] for a in actions)


def test_ranges_of_a_combined_graph_say_their_lane(tmp_path):
    schedule = ap.schedule("dualpipev", ranks=1, microbatches=4)
    pipe = ap.Pipeline([Block(6, 0), Block(6, 1)], schedule, loss_fn=loss_of)
    names = {event["name"] for event in trace_of(pipe, tmp_path / "trace.json")}
    assert {"annopipe/F:mlp", "annopipe/B:mlp"} <= names
    schedule = ap.Schedule.of(ap.placement.linear(1), 1, [["0F0/2", "0B0/2"]])
    pipe = ap.Pipeline([Block(6, 0)], schedule, loss_fn=loss_of)
    names = {event["name"] for event in trace_of(pipe, tmp_path / "trace.json")}
    assert {"0F0/2", "annopipe/F0:mlp", "annopipe/F1:mlp", "annopipe/B1:mlp"} <= names


def test_a_graph_with_ranges_computes_the_same_bits_and_its_own_graph_is_not_changed():
    module, x = Block(6, 0), torch.randn(3, 6)
    graph = ap.trace(module, (x,)).forward
    values = [dict(ap.trace(module, (x,)).bind(module), **{"input.x": x})[port.name] for port in graph.inputs]
    before = len(graph.graph.nodes)
    with torch.no_grad():
        for own, other in zip(with_ranges(graph).module(*values), graph.module(*values), strict=True):
            assert torch.equal(own, other)
    assert len(graph.graph.nodes) == before


def test_without_a_profiler_there_are_no_ranges():
    assert not is_profiled()
    with profile(activities=[ProfilerActivity.CPU]):
        assert is_profiled()
