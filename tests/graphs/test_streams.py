"""Streams: every dependency across streams is waited for, with no wait too many, and a graph's calls do just that."""

import contextlib
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.graphs.streams import START, StreamPlan, stream_plan, with_stream_calls
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage


@st.composite
def issued(draw: st.DrawFn) -> tuple[list[str], list[list[int]]]:
    count = draw(st.integers(1, 14))
    names = draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=count, max_size=count))
    before = [
        draw(st.lists(st.integers(0, place - 1), max_size=3, unique=True)) if place else [] for place in range(count)
    ]
    return names, before


def happens_before(plan: StreamPlan) -> list[set[int]]:
    """What is done when each node starts, by brute force; one more entry for the end of the graph."""
    done: list[set[int]] = []
    last: dict[str, int] = {}
    ends = [*zip(plan.names, plan.waits, strict=True), ("", plan.joins)]
    for position, (name, waits) in enumerate(ends):
        known = {START} if not name else set()
        for source in [*waits, *([last[name]] if name in last else [])]:
            known |= {source} | (done[source] if source != START else set())
        done.append(known)
        last[name] = position
    return done


@given(issued())
@settings(max_examples=300, deadline=None)
def test_whatever_must_come_first_is_done_and_the_end_is_after_all(case: Any) -> None:
    names, before = case
    done = happens_before(stream_plan(names, before))
    for position, needed in enumerate(before):
        assert set(needed) <= done[position]
        assert START in done[position]
    assert done[-1] >= set(range(len(names)))


@given(issued())
@settings(max_examples=200, deadline=None)
def test_no_wait_can_be_left_out(case: Any) -> None:
    names, before = case
    plan = stream_plan(names, before)
    for position, waits in enumerate(plan.waits):
        for left_out in waits:
            fewer = list(plan.waits)
            fewer[position] = tuple(event for event in waits if event != left_out)
            done = happens_before(StreamPlan(plan.names, tuple(fewer), plan.joins))
            needed = [*before, [*range(len(names))]]
            kept = all(set(own) | {START} <= known for own, known in zip(needed, done, strict=True))
            assert not kept, (position, left_out)


class Noted:
    """Streams that only note what they are asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.current, self.recorded = "", set[int]()

    def begin(self) -> None:
        self.calls.append(("begin",))
        self.recorded = {START}

    def switch(self, name: str) -> None:
        assert name != self.current
        self.calls.append(("switch", name))
        self.current = name

    def wait(self, event: int) -> None:
        assert event in self.recorded
        self.calls.append(("wait", event))

    def record(self, event: int) -> None:
        self.recorded.add(event)
        self.calls.append(("record", event))

    def lend(self, value: torch.Tensor, name: str) -> None:
        assert isinstance(value, torch.Tensor)
        self.calls.append(("lend", name))

    def around(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Tagged(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ap.region("main"):
            first = self.main(x).relu()
        with ap.region("beside", stream="side"):
            second = self.side(x).relu()
        return first + second


@pytest.mark.parametrize("strict", [False, True])
def test_a_tag_reaches_the_nodes_of_forward_and_backward(*, strict: bool) -> None:
    graphs = ap.trace(Tagged(), (torch.randn(2, 4),), strict=strict)
    for graph in (graphs.forward, graphs.backward):
        problem = ap.overlap(graph, policy="sequential").problem
        assert {node.stream for node in problem.nodes if node.region == "beside"} == {"side"}
        assert {node.stream for node in problem.nodes if node.region == "main"} == {""}


def test_calls_are_balanced_and_results_are_the_same() -> None:
    module, x = Tagged(), torch.randn(2, 4)
    graphs = ap.trace(module, (x,))
    plan = ap.overlap(graphs.forward, policy="sequential")
    assert plan.streams is not None
    streams = Noted()
    running: StageGraph = with_stream_calls(plan.graph, plan.streams, streams)
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    for _ in range(2):
        found, expected = running(values), plan.graph(values)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    kinds = [call[0] for call in streams.calls]
    assert kinds[0] == "begin"
    assert streams.current == ""
    assert kinds.count("switch") >= 4
    assert ("wait", START) in streams.calls
    assert ("lend", "side") in streams.calls  # x and the parameters
    assert ("lend", "") in streams.calls  # what the side stream hands back
    assert len(body(plan.graph.graph)) == len(plan.order)  # the plan's own graph is as it was


def test_a_deepseek_stage_on_streams_computes_what_it_did() -> None:
    config = DeepSeekV3Config.tiny()
    stage = DeepSeekV3Stage(config, range(1, 2), dtype=torch.float64)
    x = torch.randn(2, 8, config.hidden, dtype=torch.float64)
    graphs = ap.trace(stage, (x.requires_grad_(),))
    plan = ap.overlap(
        graphs.backward, policy="sequential", streams={"W": "weights", "moe/experts": "experts", "experts.W": ""}
    )
    names = {node.stream for node in plan.problem.nodes}
    assert names == {"", "weights", "experts"}
    values = {**graphs.bind(stage), **graphs.bind_inputs(x.detach())}
    values |= graphs.forward(values)
    values["tangent.output"] = torch.ones_like(x)
    found = with_stream_calls(plan.graph, plan.streams, Noted())(values)
    assert graphs.backward is not None
    expected = graphs.backward(values)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(plan.streams.waits[plan.streams.names.index(name)] for name in names if name)


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        ({"nothing": "side"}, "means no node; give W, host, a region"),
        ({"Q.main": "side"}, "means no node"),
        ({"main": "a b"}, "the name of a stream has letters"),
        ({"main": 3}, "give names of streams by selector"),
        ({3: "side"}, "give names of streams by selector"),
        (["main"], "give names of streams by selector"),
        ("side", "give names of streams by selector"),
    ],
)
def test_selectors_that_mean_nothing_are_refused(streams: Any, said: str) -> None:
    graphs = ap.trace(Tagged(), (torch.randn(2, 4),))
    with pytest.raises(ap.OrderError, match=said):
        ap.overlap(graphs.forward, policy="sequential", streams=streams)


def test_selectors_choose_lanes_and_weight_gradients_and_go_before_tags() -> None:
    graphs = ap.trace(Tagged(), (torch.randn(2, 4, requires_grad=True),))
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    plan = ap.overlap(both, policy="alternate", streams={"B.main.W": "weights", "F.beside": ""})
    by = {(n.lane, n.region, n.phase == "weight_grad"): n.stream for n in plan.problem.nodes}
    assert by["B", "main", True] == "weights"
    assert by["B", "main", False] == ""
    assert by["F", "beside", False] == ""
    assert by["B", "beside", False] == "side"


def test_without_streams_there_is_no_plan_and_the_graph_is_the_plans_own() -> None:
    graphs = ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    plan = ap.overlap(graphs.forward, policy="sequential")
    assert plan.streams is None
    assert plan.executable is plan.graph


@pytest.mark.parametrize("name", ["", "a b", "x;y"])
def test_a_streams_name_is_checked_where_it_is_given(name: str) -> None:
    if not name:
        with ap.region("r", stream=name):
            return
    with pytest.raises(ap.GraphError, match="region name"), ap.region("r", stream=name):
        pass


@pytest.mark.gpu
def test_streams_on_a_gpu_give_the_results_of_one_stream() -> None:
    torch.manual_seed(0)
    module, x = Tagged().cuda(), torch.randn(512, 4, device="cuda")
    graphs = ap.trace(module, (x,))
    plan = ap.overlap(graphs.forward, policy="sequential")
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    expected = graphs.forward(values)
    for _ in itertools.repeat(None, 50):
        found = plan.run(values)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
