"""Combined graphs run as their parts one after the other, and their nodes know where they belong."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError, GraphError
from annopipe.graphs import meta
from annopipe.graphs.stage_graph import StageGraph, body
from tests.graphs.helpers import assert_same
from tests.graphs.modules import Function, leaf, plain


class Tagged(nn.Module):
    """Two regions with dropout and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with ap.region("a"):
            x = F.dropout(self.a(x), 0.5)
        with ap.region("b"):
            return x + self.b(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


Traced = tuple[ap.StageGraphs, StageGraph, dict[str, Any]]


@pytest.fixture(scope="module")
def traced() -> Traced:
    """Graphs, the backward, and values for all ports of both."""
    torch.manual_seed(0)
    module = Tagged()
    graphs = ap.trace(module, (leaf(3, 4),))
    assert graphs.backward is not None
    values = {**graphs.bind(module), **graphs.bind_inputs(plain(3, 4)), "tangent.output": plain(3, 4)}
    return graphs, graphs.backward, {**values, **graphs.forward(values)}


def in_lanes(values: dict[str, Any], *lanes: str) -> dict[str, Any]:
    return {f"{lane}.{name}": value for lane in lanes for name, value in values.items()}


def test_a_combined_graph_runs_as_its_parts_in_turn_with_the_same_random_numbers(traced: Traced) -> None:
    graphs, backward, values = traced
    parts = {"F0": graphs.forward, "F1": graphs.forward, "B": backward}
    torch.manual_seed(1)
    expected = {lane: part(values) for lane, part in parts.items()}
    both = ap.multiplex(*parts.values(), lanes=tuple(parts))
    torch.manual_seed(1)
    found = both(in_lanes(values, *parts))
    assert_same(found, {name: v for lane, out in expected.items() for name, v in in_lanes(out, lane).items()})


def test_ports_are_those_of_the_parts_behind_their_lane(traced: Traced) -> None:
    graphs, backward, _ = traced
    both = ap.multiplex(backward, graphs.forward, lanes=("B", "F"))
    assert [p.name for p in both.inputs] == [f"B.{p.name}" for p in backward.inputs] + [
        f"F.{p.name}" for p in graphs.forward.inputs
    ]
    assert both.port("F.output").role == "output"
    assert both.port("F.output").source == graphs.forward.port("output").source


def test_nodes_know_their_lane_region_phase_and_key(traced: Traced) -> None:
    graphs, backward, _ = traced
    rows = ap.region_table(ap.multiplex(backward, graphs.forward, lanes=("B", "F")))
    assert {row.lane for row in rows} == {"B", "F"}
    assert {row.region for row in rows} == {"a", "b"}
    assert {row.phase for row in rows if row.lane == "B"} == {"input_grad", "weight_grad"}
    assert {row.phase for row in rows if row.lane == "F"} == {"forward"}
    assert all(meta.tag_region(row.node) == row.region for row in rows if row.rule == "tag")
    keys = [meta.placed(row.node).key for row in rows]
    own = [f"B.{n.name}" for n in body(backward.graph)] + [f"F.{n.name}" for n in body(graphs.forward.graph)]
    assert keys == own


def test_lanes_of_combinations_and_of_nano_batches_are_put_together(traced: Traced) -> None:
    graphs, _, values = traced
    inner = ap.multiplex(graphs.forward, graphs.forward, lanes=("a", "b"))
    outer = ap.multiplex(inner, graphs.forward, lanes=("X", "Y"))
    assert {row.lane for row in ap.region_table(outer)} == {"Xa", "Xb", "Y"}
    torch.manual_seed(1)
    expected = [graphs.forward(values)["output"] for _ in range(3)]
    torch.manual_seed(1)
    found = outer({**in_lanes(in_lanes(values, "a", "b"), "X"), **in_lanes(values, "Y")})
    assert_same([found["X.a.output"], found["X.b.output"], found["Y.output"]], expected)


def test_a_nano_batch_is_part_of_the_lane() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            parts = []
            for part in ap.nano_batches(x, 2):
                with ap.region("linear"):
                    parts.append(self.linear(part))
            return torch.cat(parts)

    graphs = ap.trace(Halves(), (leaf(7, 4),))
    assert graphs.backward is not None
    assert {row.lane for row in ap.region_table(graphs.forward)} == {"", "0", "1"}
    both = ap.multiplex(graphs.forward, graphs.backward, lanes=("F", "B"))
    assert {row.lane for row in ap.region_table(both)} == {"F", "F0", "F1", "B", "B0", "B1"}


def test_its_parts_are_left_alone_and_share_no_node(traced: Traced) -> None:
    graphs, _, _ = traced
    text, placements = str(graphs.forward.graph), [meta.placed(n) for n in body(graphs.forward.graph)]
    both = ap.multiplex(graphs.forward, graphs.forward)
    assert not set(both.graph.nodes) & set(graphs.forward.graph.nodes)
    assert str(graphs.forward.graph) == text
    assert [meta.placed(n) for n in body(graphs.forward.graph)] == placements
    assert {row.lane for row in ap.region_table(both)} == {"L0", "L1"}


def test_copies_share_no_node() -> None:
    forward = ap.trace(nn.Linear(2, 2), (leaf(1, 2),)).forward
    both = ap.multiplex(forward, forward)
    first, second = both.copy(), both.copy()
    assert not set(first.graph.nodes) & set(second.graph.nodes)
    assert str(first.graph) == str(second.graph)


@pytest.mark.parametrize("lanes", [("F", "F_G"), ("a", "a_b")])
def test_constants_of_lanes_with_similar_names_do_not_mix(lanes: tuple[str, str]) -> None:
    first = ap.trace(Function(lambda _, x: x * torch.tensor([1.0, 2.0])), (plain(2),)).forward
    second = ap.trace(Function(lambda _, x: x * torch.tensor([3.0, 4.0])), (plain(2),)).forward
    found = ap.multiplex(first, second, lanes=lanes)(in_lanes({"input.x": torch.ones(2)}, *lanes))
    assert_same([found[f"{lane}.output"].tolist() for lane in lanes], [[1.0, 2.0], [3.0, 4.0]])


def test_lanes_and_ports_whose_names_run_together_do_not_mix() -> None:
    class Named(nn.Module):
        def forward(self, b_x: Tensor, x: Tensor) -> Tensor:
            return b_x - x

    class Short(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    both = ap.multiplex(
        ap.trace(Named(), (plain(2), plain(2))).forward,
        ap.trace(Short(), (plain(2),)).forward,
        lanes=("a", "a_input_b"),
    )
    values = {"a.input.b_x": torch.ones(2), "a.input.x": torch.zeros(2), "a_input_b.input.x": torch.full((2,), 3.0)}
    found = both(values)
    assert_same([found["a.output"].tolist(), found["a_input_b.output"].tolist()], [[1.0, 1.0], [6.0, 6.0]])


def test_subgraphs_of_higher_order_operations_go_along() -> None:
    def choose(_: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,))

    forward = ap.trace(Function(choose), (plain(2),)).forward
    found = ap.multiplex(forward, forward, lanes=("a", "b"))({"a.input.x": torch.ones(2), "b.input.x": -torch.ones(2)})
    assert_same([found["a.output"].tolist(), found["b.output"].tolist()], [[2.0, 2.0], [-3.0, -3.0]])


def test_guards_hold_in_their_lane() -> None:
    forward = ap.trace(Function(lambda _, x, k: x * k), (plain(2), 3)).forward
    both = ap.multiplex(forward, forward, lanes=("a", "b"))
    values = in_lanes({"input.x": torch.ones(2)}, "a", "b")
    both({**values, "a.input.rest.0": 3, "b.rest.0": 3})
    for name in ("b.input.rest.0", "b.rest.0"):
        with pytest.raises(CaptureError, match="argument rest.0 was 3 when the module was traced and is 4 now"):
            both({**values, name: 4})
    nested = ap.multiplex(both, forward, lanes=("X", "Y"))
    with pytest.raises(CaptureError, match="argument rest.0 was 3"):
        nested({**in_lanes(values, "X"), "Y.input.x": torch.ones(2), "X.b.input.rest.0": 4})


def test_an_empty_part_is_fine() -> None:
    graphs = ap.trace(nn.Linear(2, 2), (plain(1, 2),))
    assert graphs.backward_input is not None
    both = ap.multiplex(graphs.backward_input, graphs.forward, lanes=("I", "F"))
    assert {row.lane for row in ap.region_table(both)} == {"F"}


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        (["F"], "one distinct lane name per graph, got 2 graphs and lanes"),
        (["F", "F"], "one distinct lane name per graph"),
        (["F", "1"], "lane '1': use a letter followed by letters, digits or _"),
        (["F", "a.b"], "lane 'a.b'"),
        (["F", 3], "lane 3"),
    ],
)
def test_lane_names_that_are_wrong_are_refused(lanes: Any, message: str) -> None:
    forward = ap.trace(nn.Linear(2, 2), (plain(1, 2),)).forward
    with pytest.raises(GraphError, match=message):
        ap.multiplex(forward, forward, lanes=lanes)


def test_nothing_to_combine_is_refused() -> None:
    with pytest.raises(GraphError, match="got 0 graphs"):
        ap.multiplex()
