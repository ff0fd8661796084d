"""Combined graphs run as their parts one after the other; extracted parts keep what they were asked for."""

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.graphs.stage_graph import body
from tests.graphs.helpers import assert_same
from tests.graphs.test_stages import given


class Tagged(nn.Module):
    """Two regions with dropout and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ap.region("a"):
            x = torch.dropout(self.a(x), 0.5, train=True)
        with ap.region("b"):
            return x + self.b(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture(name="traced")
def _traced():
    torch.manual_seed(0)
    module = Tagged()
    graphs = ap.trace(module, (given(3, 4),))
    values = {**graphs.bind(module), **graphs.bind_inputs(given(3, 4))}
    return graphs, values


def test_a_multiplexed_graph_runs_as_its_parts_in_turn(traced) -> None:
    graphs, values = traced
    torch.manual_seed(1)
    first = graphs.forward(values)
    backward = {**values, **first, "tangent.output": torch.ones(3, 4)}
    second = graphs.forward(values)
    third = graphs.backward(backward)
    both = ap.multiplex(graphs.forward, graphs.forward, graphs.backward, lanes=("F0", "F1", "B"))
    lanes = {f"{lane}.{name}": v for lane in ("F0", "F1", "B") for name, v in backward.items()}
    torch.manual_seed(1)
    found = both(lanes)
    for lane, expected in (("F0", first), ("F1", second), ("B", third)):
        assert_same({name: found[f"{lane}.{name}"] for name in expected}, expected, lane)
    assert len(found) == 2 * len(first) + len(third)


def test_nodes_of_a_multiplexed_graph_know_lane_region_and_phase(traced) -> None:
    graphs, _ = traced
    rows = ap.region_table(ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F")))
    assert {row.lane for row in rows} == {"B", "F"}
    assert {row.region for row in rows} == {"a", "b"}
    assert {row.phase for row in rows if row.lane == "B"} == {"input_grad", "weight_grad"}
    assert {row.phase for row in rows if row.lane == "F"} == {"forward"}
    assert all(row.node.meta["custom"]["annopipe"] == row.region for row in rows if row.rule == "tag")


def test_multiplexing_leaves_its_parts_alone(traced) -> None:
    graphs, _ = traced
    before = [node.name for node in body(graphs.forward.graph)]
    tags = [dict(node.meta.get("custom", {})) for node in body(graphs.forward.graph)]
    both = ap.multiplex(graphs.forward, graphs.forward)
    assert len(body(both.graph)) == 2 * len(before)
    assert [node.name for node in body(graphs.forward.graph)] == before
    assert [dict(node.meta.get("custom", {})) for node in body(graphs.forward.graph)] == tags


def test_extract_keeps_what_an_output_needs_and_nothing_else(traced) -> None:
    graphs, values = traced
    saved = {**values, **graphs.forward(values), "tangent.output": torch.ones(3, 4)}
    part = ap.extract(graphs.backward, ["param_grad.b.weight"])
    assert [port.name for port in part.outputs] == ["param_grad.b.weight"]
    assert len(body(part.graph)) < len(body(graphs.backward.graph))
    assert_same(part(saved), {"param_grad.b.weight": graphs.backward(saved)["param_grad.b.weight"]})


def test_every_node_has_a_region_a_kind_a_phase_and_a_rule(traced) -> None:
    graphs, _ = traced
    for graph in (graphs.forward, graphs.backward, graphs.backward_input, graphs.backward_weight):
        for row in ap.region_table(graph):
            assert row.region in ("a", "b")
            assert row.kind in ("compute", "launch", "wait", "host")
            assert row.phase in ("forward", "input_grad", "weight_grad", "recompute", "other")
            assert row.rule in ("tag", "pair", "gradient sum", "producer", "consumer", "untagged")


def test_gradient_sums_are_placed_by_rule(traced) -> None:
    graphs, _ = traced
    sums = [row for row in ap.region_table(graphs.backward) if row.rule == "gradient sum"]
    assert len(sums) == 1, "x is used by the residual and by b"


def test_nano_batches_become_lanes_of_one_graph() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = []
            for part in ap.nano_batches(x, 2):
                with ap.region("linear"):
                    parts.append(self.linear(part))
            return torch.cat(parts)

    module, x = Halves(), given(7, 4)
    graphs = ap.trace(module, (x,))
    for graph in (graphs.forward, graphs.backward):
        assert {"0", "1"} <= {row.lane for row in ap.region_table(graph)} <= {"", "0", "1"}
    plan = ap.overlap(graphs.forward, policy="alternate")
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    assert torch.equal(plan.run(values)["output"], module(x))
