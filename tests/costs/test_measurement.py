"""Measured costs cover every node, count each launch once, and leave the results alone."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn

import annopipe as ap


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
