"""Graphs compiled by Inductor beside the same graphs in eager PyTorch; skipped where there is no C++ compiler."""

import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils._python_dispatch import TorchDispatchMode

import annopipe as ap
from annopipe.compiling import building, inductor
from annopipe.compiling.forms import NotCompiled
from annopipe.compiling.graphs import compile_graphs
from annopipe.errors import GraphError
from annopipe.graphs.stage_graph import StageGraph, body
from tests.compiling.small_moe import SmallMoE

COMPILER = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")
WIDTH = 8
# Not what an exchange does inside: it reads its sizes and launches an all-to-all.
_IN_THE_GRAPH = ("annopipe.exchange.default", "_c10d_functional.wait_tensor.default")
# The largest difference to eager, over the largest value; what docs/compiling.md says.
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
    dist.destroy_process_group()


@pytest.fixture
def compiler() -> None:
    if COMPILER is None:
        pytest.skip("no C++ compiler")


def traced(dtype: torch.dtype) -> tuple[SmallMoE, ap.StageGraphs]:
    module = SmallMoE(WIDTH, dist.group.WORLD, 1, 0, dtype)
    return module, ap.trace(module, (torch.randn(6, WIDTH, dtype=dtype, requires_grad=True),))


def run(graphs: ap.StageGraphs, forward: Any, backward: Any, module: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    values |= forward(values)
    return {**values, **backward({**values, "tangent.output": torch.ones_like(values["output"])})}


def difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    worst = 0.0
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype), name
            largest = value.abs().max().item() if value.numel() else 0.0
            worst = max(worst, (found[name] - value).abs().max().item() / largest if largest else 0.0)
        else:
            assert equal(found[name], value), name
    return worst


def equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(b, torch.Tensor) else bool(a == b)


class Communication(TorchDispatchMode):
    """The launches, waits and host reads that really run, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_communication(func):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def is_communication(target: Any) -> bool:
    return getattr(target, "namespace", "") in ("annopipe", "_c10d_functional") or "scalar_dense" in str(target)


def planned(graph: StageGraph) -> list[str]:
    return [str(node.target) for node in body(graph.graph) if str(node.target) in _IN_THE_GRAPH]


@pytest.mark.nightly
@pytest.mark.usefixtures("compiler")
def test_a_compiled_graph_computes_what_the_graph_computes() -> None:
    module, graphs = traced(torch.float32)
    assert graphs.backward is not None
    forward, backward = compile_graphs([(graphs.forward, None), (graphs.backward, None)])
    assert len(forward.report.compiled) == 5
    assert len(backward.report.compiled) > 3
    for seed in range(3):
        x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(seed))
        expected = run(graphs, graphs.forward, graphs.backward, module, x)
        assert difference(run(graphs, forward, backward, module, x), expected) <= TOLERANCES[torch.float32]


@pytest.mark.nightly
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_compiled_forward_of_another_type_is_as_near_as_that_type_allows(dtype: torch.dtype) -> None:
    module, graphs = traced(dtype)
    forward = ap.compile_graph(graphs.forward)
    for seed in range(3):
        x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
        values = {**graphs.bind(module), **graphs.bind_inputs(x)}
        assert difference(forward(values), graphs.forward(values)) <= TOLERANCES[dtype]


@pytest.mark.nightly
@pytest.mark.usefixtures("compiler")
def test_all_orders_give_the_same_bits_and_communicate_in_the_plans_order() -> None:
    module, graphs = traced(torch.float32)
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    first, second = torch.randn(6, WIDTH), torch.randn(6, WIDTH)
    values = {**graphs.bind(module), **graphs.bind_inputs(first)}
    values |= graphs.forward(values)
    values["tangent.output"] = torch.ones(6, WIDTH)
    lanes = {**ap.into_lane(values, "B"), **ap.into_lane({**graphs.bind(module), **graphs.bind_inputs(second)}, "F")}
    results, orders = [], set()
    for policy in ("sequential", "alternate", "B.experts ; B.dispatch | F.norm ; F.dispatch | B.router ; F.experts"):
        plan = ap.overlap(both, policy=policy)
        compiled = plan.compiled()
        assert compiled.compile_report is not None
        assert len(compiled.compile_report.compiled) > 8
        with Communication() as seen:
            results.append(compiled.run(lanes))
        with Communication() as eager:
            expected = plan.run(lanes)
        assert seen.seen == eager.seen
        assert [name for name in seen.seen if name in _IN_THE_GRAPH] == planned(plan.graph)
        orders.add(tuple(seen.seen))
        assert difference(results[-1], expected) <= TOLERANCES[torch.float32]
    assert len(orders) > 1
    for other in results[1:]:
        assert all(equal(other[name], value) for name, value in results[0].items())


class Ragged(nn.Module):
    """Computes on as many rows as are positive."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0].gt(0).nonzero().squeeze(1)
        with ap.region("computed"):
            return (x.index_select(0, rows).sigmoid() * 3 - 1).cumsum(0).tanh()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_sizes_that_depend_on_data_are_right_and_compile_nothing_again() -> None:
    graph = ap.trace(Ragged(), (torch.ones(9, WIDTH),)).forward
    compiled = ap.compile_graph(graph)
    assert [row.region for row in compiled.report.compiled] == ["computed"]
    before = inductor.compile_form.cache_info()
    for count in (9, 0, 1, 2, WIDTH, 5):
        x = torch.randn(9, WIDTH)
        x[:, 0] = torch.where(torch.randperm(9) < count, 1.0, -1.0)
        found, expected = compiled({"input.x": x})["output"], graph({"input.x": x})["output"]
        assert found.shape == expected.shape == (count, WIDTH)
        assert torch.allclose(found, expected, rtol=2e-6, atol=2e-6)
    assert inductor.compile_form.cache_info() == before


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_what_was_compiled_is_found_on_disk() -> None:
    graph = ap.trace(Ragged(), (torch.ones(9, WIDTH),)).forward
    ap.compile_graph(graph)
    inductor.compile_form.cache_clear()
    hits, misses = (counters["inductor"][f"fxgraph_cache_{found}"] for found in ("hit", "miss"))
    assert ap.compile_graph(graph).report.compiled
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1
    assert counters["inductor"]["fxgraph_cache_miss"] == misses


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout((x * 2).tanh() + 1, 0.5, training=True)


def refuse(form: str, _version: str) -> NoReturn:
    raise NotCompiled("made to fail")


def test_what_cannot_be_compiled_runs_as_it_is_and_the_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_form", refuse)
    graph = ap.trace(Dropping(), (torch.ones(4, WIDTH),)).forward
    compiled = ap.compile_graph(graph, helpers=0)
    assert not compiled.report.compiled
    assert compiled.report.reasons["made to fail"] > 2
    assert str(compiled.report).startswith("0 stretches compiled, 0 distinct, in ")
    x, outputs = torch.randn(4, WIDTH), []
    for own in (graph, compiled):
        torch.manual_seed(3)
        outputs.append(own({"input.x": x})["output"])
    assert torch.equal(*outputs)


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> NoReturn:
        raise InvalidCxxCompiler

    monkeypatch.setattr(inductor, "get_cpp_compiler", none)
    graph = ap.trace(Dropping(), (torch.ones(4, WIDTH),)).forward
    with pytest.raises(GraphError, match=r"takes a C\+\+ compiler, and there is none: install g\+\+ or clang\+\+"):
        ap.compile_graph(graph)


def test_only_stage_graphs_are_compiled() -> None:
    with pytest.raises(GraphError, match=r"compile_graph takes a stage graph, got Linear: pass graphs\.forward"):
        ap.compile_graph(nn.Linear(2, 2))


def test_helpers_take_the_processors_that_ranks_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "processors", lambda: 8)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [building.helpers_for(forms) for forms in (1, 4, 100)] == [0, 2, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert building.helpers_for(100) == 0


@pytest.mark.parametrize(("own", "helpers"), [(4, 3), (8, 1), (16, 3)])
def test_ranks_that_are_bound_to_processors_have_those(monkeypatch: pytest.MonkeyPatch, own: int, helpers: int) -> None:
    """4 of 16 for each of 4 ranks are its own; 8 of 16 are shared by all."""
    monkeypatch.setattr(building, "processors", lambda: own)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert building.helpers_for(100) == helpers
