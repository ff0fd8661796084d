"""Measured costs cover every node, count each launch once, and leave the results alone."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.stage_graph import body
from tests.compiling.interpreting import interpreting
from tests.compiling.small_moe import SmallMoE


class Exchange(nn.Module):
    """A product, an all-to-all and a host read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.sizes: torch.Tensor
        self.register_buffer("sizes", torch.tensor([3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.sizes.tolist()
        assert dist.group.WORLD is not None
        return fc.all_to_all_single_autograd(x @ self.weight, rows, rows, dist.group.WORLD)


@pytest.fixture(name="traced")
def _traced():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    module, x = Exchange(), torch.randn(3, 4)
    graphs = ap.trace(module, (x,))
    yield graphs, {**graphs.bind(module), **graphs.bind_inputs(x)}
    dist.destroy_process_group()


def test_every_node_but_placeholders_gets_a_cost(traced) -> None:
    graphs, values = traced
    costs = ap.costs.measure(graphs.forward, values, dist.group.WORLD, repeat=2, warmup=1)
    rows = ap.region_table(graphs.forward)
    assert set(costs.seconds) == {row.node.name for row in rows}
    launches = {row.node.name for row in rows if row.kind == "launch"}
    assert launches == set(costs.issue) == set(costs.latency) != set()
    assert all(costs.latency[name] <= costs.seconds[name] for name in launches)
    assert all(costs.seconds[row.node.name] == 0 for row in rows if row.kind == "wait")
    assert costs.network.in_flight == 1, "one connection per peer carries one message after the other"
    ap.overlap(graphs.forward, policy="list", costs=costs)


def test_recorded_launches_can_be_repeated(traced) -> None:
    graphs, values = traced
    (call,) = ap.costs.record_launches(graphs.forward, values).values()
    launched = call.launch()
    ap.costs.wait_for(launched)
    assert torch.equal(launched, graphs.forward(values)["output"])


def test_measuring_nothing_is_refused(traced) -> None:
    graphs, values = traced
    with pytest.raises(ap.CostError, match="measure at least once"):
        ap.costs.measure(graphs.forward, values, repeat=0)
    with pytest.raises(ap.GraphError, match="no value for"):
        ap.costs.measure(graphs.forward, {})


def test_measuring_leaves_the_random_state_alone() -> None:
    graphs = ap.trace(nn.Dropout(0.5), (torch.ones(4),))
    before = torch.get_rng_state()
    ap.costs.measure(graphs.forward, {"input.input": torch.ones(4)}, repeat=1, warmup=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_costlier_node_costs_more() -> None:
    class Products(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with ap.region("small"):
                small = x[:8, :8] @ x[:8, :8]
            with ap.region("large"):
                return small, x @ x

    graphs = ap.trace(Products(), (torch.ones(400, 400),))
    costs = ap.costs.measure(graphs.forward, {"input.x": torch.ones(400, 400)}, repeat=5)
    by_region: dict[str, float] = {}
    for row in ap.region_table(graphs.forward):
        by_region[row.region] = by_region.get(row.region, 0.0) + costs.seconds[row.node.name]
    assert by_region["large"] > by_region["small"] > 0


@pytest.mark.usefixtures("traced")
def test_costs_of_a_compiled_graph_are_those_of_the_nodes_it_was_made_of() -> None:
    module, x = SmallMoE(8, dist.group.WORLD, 1, 0, torch.float32), torch.randn(6, 8)
    graphs = ap.trace(module, (x,))
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    values |= graphs.forward(values)
    values["tangent.output"] = torch.ones(6, 8)
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    plan = ap.overlap(both, policy="alternate")
    for graph, given in ((graphs.backward, values), (both, ap.into_lane(values, "B") | ap.into_lane(values, "F"))):
        compiled, bounds = interpreting(graph, plan.program_order if graph is both else None)
        assert len(bounds) > 1
        eager = ap.costs.measure(graph, given, repeat=1, warmup=0)
        found = ap.costs.measure(compiled, given, repeat=1, warmup=0)
        assert found.seconds.keys() == eager.seconds.keys()
        assert found.issue.keys() == eager.issue.keys()
        for bound in bounds:
            assert all(found.seconds[meta.placed(node).key] > 0 for node in bound.stretch.nodes)
        ap.overlap(graph, policy="list", costs=found)


@pytest.mark.usefixtures("traced")
def test_compiled_graphs_are_neither_combined_nor_ordered() -> None:
    graphs = ap.trace(SmallMoE(8, dist.group.WORLD, 1, 0, torch.float32), (torch.randn(6, 8),))
    compiled, _ = interpreting(graphs.forward)
    with pytest.raises(ap.GraphError, match="multiplex takes a graph that is not compiled, and this one is"):
        ap.multiplex(graphs.backward, compiled)
    with pytest.raises(ap.GraphError, match=r"compile the plan, ap\.overlap\(graph\)\.compiled\(\)"):
        ap.overlap(compiled)


@pytest.mark.usefixtures("traced")
def test_what_a_stretch_takes_is_shared_out_among_its_nodes_and_nothing_is_lost() -> None:
    module = SmallMoE(8, dist.group.WORLD, 1, 0, torch.float32)
    graphs = ap.trace(module, (torch.randn(6, 8),))
    compiled, bounds = interpreting(graphs.forward)
    shares: dict[str, float] = {}
    for node in body(compiled.graph):
        assert sum(meta.shares(node).values()) == pytest.approx(1.0)
        for key, share in meta.shares(node).items():
            shares[key] = shares.get(key, 0.0) + share
    assert shares.keys() == {row.node.name for row in ap.region_table(graphs.forward)}
    for bound in bounds:
        inside = [shares[node.name] for node in bound.stretch.nodes if node not in bound.outputs]
        assert inside == pytest.approx([min(inside, default=0.0)] * len(inside))
