"""Host reads: copies start where their value is made, end where it is used, and change no result."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.host_copies import with_host_copies
from annopipe.graphs.reordering import reorder
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.compiling.test_stretches import prepared, random_order
from tests.graphs.helpers import same
from tests.graphs.random_graphs import SIDE_EFFECTS, share_alike

aten = torch.ops.aten


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Copies:
    """Copies that happen at once, or as late as they may; before that there is nothing to look at."""

    def __init__(self, *, late: bool) -> None:
        self.late = late
        self.open = self.most = self.count = 0

    def start(self, value: Tensor, dtype: torch.dtype) -> Any:
        self.open += 1
        self.count += 1
        self.most = max(self.most, self.open)
        return (value, dtype) if self.late else (value.to(dtype, copy=True), dtype)

    def finish(self, started: Any) -> Tensor:
        self.open -= 1
        value, dtype = started
        return value.to(dtype, copy=True)


def with_reads(graph: StageGraph, rng: random.Random) -> StageGraph:
    """The graph with reads of some of its values, which are results too."""
    copy = graph.copy()
    output = copy.graph.output_node()
    results = list(output.args[0])
    ports = list(copy.outputs)
    floats = [n for n in body(copy.graph) if isinstance(meta.value(n), Tensor) and meta.value(n).is_floating_point()]
    for number, node in enumerate(rng.sample(floats, min(len(floats), 3))):
        value = meta.value(node)
        with copy.graph.inserting_before(output):
            if value.numel() and rng.random() < 0.5:
                element = node
                for _ in range(value.dim()):
                    element = copy.graph.call_function(aten.select.int, (element, 0, 0))
                    meta.set_value(element, aten.select.int(meta.value(element.args[0]), 0, 0))  # type: ignore[arg-type]
                read = copy.graph.call_function(aten._local_scalar_dense.default, (element,))
                made = copy.graph.call_function(aten.scalar_tensor.default, (read,))
                meta.set_value(read, 1.0)
                meta.set_value(made, torch.ones(()))
            else:
                options = {"dtype": torch.float64, "device": torch.device("cpu")}
                read = copy.graph.call_function(aten._to_copy.default, (node,), options)
                meta.set_value(read, value.double())
                made = copy.graph.call_function(aten.add.Tensor, (read, 1))
                meta.set_value(made, value.double())
        results.append(made)
        ports.append(ap.Port.of("output", f"read{number}", meta.value(made)))
    output.args = (tuple(results),)
    return StageGraph(copy.graph, copy.inputs, ports, attributes=copy.attributes)


def outcome(graph: StageGraph, inputs: dict[str, Tensor]) -> list[Any]:
    own = share_alike(inputs)
    attributes = {k: v.clone() if isinstance(v, Tensor) else v for k, v in graph.attributes.items()}
    torch.manual_seed(5)
    SIDE_EFFECTS.clear()
    return [*fx.GraphModule(attributes, graph.graph)(*(own[port.name] for port in graph.inputs)), *own.values()]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False), st.booleans())
def test_copies_that_end_late_or_at_once_change_nothing_in_any_order(rng: random.Random, late: bool) -> None:
    program, _ = prepared(rng)
    if program.racy:
        return
    graph = with_reads(program.stage, rng)
    graph = reorder(graph, random_order(rng, body(graph.graph)))
    copies = Copies(late=late)
    found = outcome(with_host_copies(graph, copies, "cpu"), program.inputs)
    assert all(same(a, b) for a, b in zip(found, outcome(graph, program.inputs), strict=True))
    assert copies.open == 0


class Counting(nn.Module):
    """Reads three numbers of one tensor, after computation that does not need them."""

    def forward(self, x: Tensor) -> Tensor:
        counts = x.gt(0).sum(0)
        y = x.tanh().exp().sin()
        first, second, third = counts.tolist()
        for size in (first, second, third):
            torch._check(size >= 0)
        return y.new_zeros(first + second + third).sum() + y


def test_numbers_of_one_tensor_are_one_copy_that_starts_behind_it_and_ends_where_they_are_used() -> None:
    graph = ap.trace(Counting(), (torch.randn(5, 3),)).forward
    names = [node.name for node in body(graph.graph)]
    reads = [n for n in body(graph.graph) if "scalar_dense" in str(n.target)]
    assert len(reads) == 3
    copies = Copies(late=True)
    cut = with_host_copies(graph, copies, "cpu")
    nodes = body(cut.graph)
    started = next(n for n in nodes if n.target == "start")
    assert started.prev is started.args[1]
    assert str(started.args[1].target) == "aten.sum.dim_IntList"  # type: ignore[union-attr]
    found = next(n for n in nodes if n.target == "finish")
    between = nodes[nodes.index(started) + 1 : nodes.index(found)]
    assert {"tanh", "exp", "sin"} <= {n.name for n in between}
    for _ in range(2):
        x = torch.randn(5, 3)
        assert torch.equal(cut({"input.x": x})["output"], graph({"input.x": x})["output"])
    assert copies.count == 2
    assert [node.name for node in body(graph.graph)] == names


@pytest.mark.parametrize("policy", ["sequential", "alternate", "dualpipe"])
def test_a_deepseek_pair_reads_late_and_computes_what_it_did(policy: str) -> None:
    config = DeepSeekV3Config.tiny()
    stage = DeepSeekV3Stage(config, range(1, 2), group=dist.group.WORLD, dtype=torch.float64)
    x = torch.randn(2, 8, config.hidden, dtype=torch.float64, requires_grad=True)
    graphs = ap.trace(stage, (x,))
    plan = ap.overlap(ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F")), policy=policy)
    values = {**graphs.bind(stage), **graphs.bind_inputs(x.detach())}
    saved = {**values, **graphs.forward(values), "tangent.output": torch.ones_like(x)}
    given = {**ap.into_lane(saved, "B"), **ap.into_lane(values, "F")}
    copies = Copies(late=True)
    found, expected = with_host_copies(plan.graph, copies, "cpu")(given), plan.graph(given)
    assert copies.count > 0
    assert all(
        torch.equal(found[name], v) if isinstance(v, Tensor) else found[name] == v for name, v in expected.items()
    )


def test_a_graph_without_reads_on_the_device_stays_as_it_is() -> None:
    graph = ap.trace(Counting(), (torch.randn(5, 3),)).forward
    assert with_host_copies(graph) is graph
    graph = ap.trace(nn.Tanh(), (torch.ones(2),)).forward
    assert with_host_copies(graph, Copies(late=True), "cpu") is graph
