"""Captured runs of random graphs: in call after call what the graph gives, and nothing that a later call changes."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

import annopipe as ap
from annopipe.capturing.graphs import captured
from annopipe.capturing.runs import Run, find_runs
from annopipe.capturing.worth import NOT_WORTH, Weight
from annopipe.graphs.fixed import is_fixed
from annopipe.graphs.ports import Port
from annopipe.graphs.reordering import reorder
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.capturing.emulated import EmulatedRecorder
from tests.compiling.interpreting import interpreting
from tests.compiling.test_stretches import prepared, random_order
from tests.graphs.helpers import same
from tests.graphs.random_graphs import SIDE_EFFECTS, Program, share_alike

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be captured is."""
    monkeypatch.setattr(Weight, "gain_s", 1.0)


def with_parameters(graph: StageGraph, names: list[str]) -> StageGraph:
    """The graph with some of its inputs as parameters."""
    ports = [
        Port(
            "param." + p.name if p.name in names else p.name,
            "param" if p.name in names else p.role,
            p.source,
            p.dtype,
            p.shape,
            p.device,
            p.strides,
        )
        for p in graph.inputs
    ]
    return StageGraph(graph.graph, ports, graph.outputs, attributes=graph.attributes)


class Running:
    """A graph in call after call on the same parameters, with constants of its own."""

    def __init__(self, graph: StageGraph, program: Program) -> None:
        constants = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in graph.attributes.items()
        }
        self._module, self._graph = fx.GraphModule(constants, graph.graph), graph
        self._constants = [value for value in constants.values() if isinstance(value, torch.Tensor)]
        self._program = program
        self._parameters: dict[str, torch.Tensor] = {}

    def replace_parameters(self) -> None:
        """Put other tensors in their place."""
        self._parameters.clear()

    def __call__(self, scale: float) -> list[Any]:
        """Everything that a call leaves behind."""
        inputs = share_alike(self._program.inputs)
        for value in inputs.values():
            value.mul_(scale)
        for port in self._graph.inputs:
            name = port.name.removeprefix("param.")
            if port.role == "param":
                kept = self._parameters.setdefault(name, inputs[name])
                inputs[name] = kept
        torch.manual_seed(5)
        SIDE_EFFECTS.clear()
        results = self._module(*(inputs[port.name.removeprefix("param.")] for port in self._graph.inputs))
        return [*results, *inputs.values(), *self._constants, torch.get_rng_state(), torch.tensor(len(SIDE_EFFECTS))]


@pytest.mark.usefixtures("always")
@SETTINGS
@given(st.randoms(use_true_random=False))
def test_every_call_gives_what_the_graph_gives_and_later_calls_change_nothing(rng: random.Random) -> None:
    program, _ = prepared(rng)
    if program.racy:
        return
    names = [name for name in program.inputs if rng.random() < 0.5]
    order = random_order(rng, body(program.stage.graph))
    graph = with_parameters(reorder(program.stage, order), names)
    recorder = EmulatedRecorder()
    expected, found = Running(graph, program), Running(captured(graph, recorder), program)
    earlier: list[tuple[list[Any], list[Any]]] = []
    replaces = bool(names) and rng.random() < 0.3
    for scale in (1.0, 0.5, -1.0):
        if replaces:
            found.replace_parameters()
            expected.replace_parameters()
        wanted, given = expected(scale), found(scale)
        recorder.spoil()
        count = len(graph.outputs)
        for own, other in [*earlier, (given, wanted)]:
            assert all(same(a, b) for a, b in zip(own[:count], other[:count], strict=True))
        assert all(same(a, b) for a, b in zip(given, wanted, strict=True))
        earlier.append((given[:count], wanted[:count]))  # later calls may write to parameters, in both
    assert replaces or recorder.replayed == 2 * recorder.recorded


@SETTINGS
@given(st.randoms(use_true_random=False))
def test_runs_keep_what_is_fixed_in_its_order_and_every_node_once(rng: random.Random) -> None:
    program, _ = prepared(rng)
    graph = reorder(program.stage, random_order(rng, body(program.stage.graph)))
    runs = find_runs(graph, "cpu")
    nodes = [node for item in runs.items for node in (item.nodes if isinstance(item, Run) else [item])]
    assert sorted([*nodes, *runs.loose]) == sorted(body(graph.graph))
    fixed = [node for node in body(graph.graph) if node in nodes and is_fixed(node)]
    assert fixed == [node for node in nodes if is_fixed(node)]
    assert not any(is_fixed(node) for item in runs.items if isinstance(item, Run) for node in item.nodes)


def deepseek_pair() -> tuple[ap.OverlapPlan, dict[str, Any]]:
    config = DeepSeekV3Config.tiny()
    stage = DeepSeekV3Stage(config, range(1, 2), group=dist.group.WORLD, dtype=torch.float64)
    x = torch.randn(2, 8, config.hidden, dtype=torch.float64, requires_grad=True)
    graphs = ap.trace(stage, (x,))
    plan = ap.overlap(ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F")), policy="alternate")
    values = {**graphs.bind(stage), **graphs.bind_inputs(x.detach())}
    saved = {**values, **graphs.forward(values), "tangent.output": torch.ones_like(x)}
    return plan, {**ap.into_lane(saved, "B"), **ap.into_lane(values, "F")}


def equal(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(same(found[n], v) if isinstance(v, torch.Tensor) else found[n] == v for n, v in expected.items())


@pytest.mark.parametrize("compiles", [False, True])
def test_a_dropless_pair_captures_what_has_known_sizes_and_says_why_the_rest_is_not(compiles: bool) -> None:
    plan, values = deepseek_pair()
    expected = plan.run(values)
    graph = interpreting(plan.graph, plan.program_order)[0] if compiles else plan.graph
    recorder = EmulatedRecorder()
    found = captured(graph, recorder)
    for _ in range(2):
        assert equal(found(values), expected)
        recorder.spoil()
    report = found.report
    assert recorder.recorded == len(report.captured) > 2
    assert sum(row.operations for row in report.captured) > (20 if compiles else 100)
    assert {"its sizes depend on data", NOT_WORTH} <= report.reasons.keys()
    launches = [str(node.target) for node in body(plan.graph.graph) if is_fixed(node)]
    assert launches == [str(node.target) for node in body(found.graph) if is_fixed(node) and node.op == "call_function"]


def test_a_run_that_cannot_be_recorded_runs_as_it_is_and_the_report_says_why() -> None:
    plan, values = deepseek_pair()
    found = captured(plan.graph, EmulatedRecorder(refuses="sigmoid"))
    before = len(found.report.captured)
    for _ in range(2):
        assert equal(found(values), plan.run(values))
    assert 0 < len(found.report.captured) < before
    assert "an operation of it makes the host wait for the GPU" in found.report.reasons


def test_a_plan_on_a_processor_is_refused() -> None:
    plan, _ = deepseek_pair()
    with pytest.raises(ap.GraphError, match="CUDA graphs run on a GPU, and this graph runs on cpu"):
        plan.captured()
    with pytest.raises(ap.GraphError, match="capture_graph takes a stage graph, got Linear"):
        ap.capture_graph(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.gpu
def test_captured_runs_on_a_gpu_give_the_results_of_the_graph_in_call_after_call() -> None:
    module = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6))
    ).cuda()
    graphs = ap.trace(module, (torch.randn(16, 64, device="cuda"),))
    found = ap.capture_graph(graphs.forward)
    assert found.report.captured
    earlier = []
    for _ in range(5):
        values = {**graphs.bind(module), **graphs.bind_inputs(torch.randn(16, 64, device="cuda"))}
        earlier.append((found(values), graphs.forward(values)))
        assert all(equal(*pair) for pair in earlier)
