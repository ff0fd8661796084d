"""``extract`` keeps what lies on the way from inputs to outputs, and refuses cuts that no port can carry."""

import operator

import pytest
import torch
from torch import fx, nn

import annopipe as ap
from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.extraction import ancestors, extract, saved_port
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, body
from tests.graphs.modules import Function, leaf

aten = torch.ops.aten


@pytest.fixture
def joint() -> StageGraph:
    """x -> a -> b -> c = out1; b -> d = out2."""
    graph, x = fx.Graph(), torch.ones(3)
    node = graph.placeholder("x")
    a = graph.call_function(aten.sin.default, (node,))
    b = graph.call_function(aten.exp.default, (a,))
    c = graph.call_function(aten.neg.default, (b,))
    d = graph.call_function(aten.cos.default, (b,))
    graph.output((c, d))
    return StageGraph(graph, [Port.of("input", "x", x)], [Port.of("output", "1", x), Port.of("output", "2", x)])


def named(graph: StageGraph) -> list[str]:
    return [node.name for node in body(graph.graph)]


def test_only_what_an_output_needs_is_kept_in_program_order(joint: StageGraph) -> None:
    one = extract(joint, ["output.1"])
    assert named(one) == ["sin_default", "exp_default", "neg_default"]
    assert [p.name for p in one.outputs] == ["output.1"]
    x = torch.randn(3)
    assert torch.equal(one({"input.x": x})["output.1"], -x.sin().exp())


def test_a_supplied_node_is_an_input_and_what_it_needs_is_dropped(joint: StageGraph) -> None:
    b = body(joint.graph)[1]
    tail = extract(joint, ["output.2", "output.1"], inputs=[(Port.of("saved", "b", torch.ones(3)), b)])
    assert named(tail) == ["neg_default", "cos_default"]
    assert [p.name for p in tail.inputs] == ["saved.b"]
    assert torch.equal(tail({"saved.b": torch.ones(3)})["output.2"], torch.ones(3).cos())


def test_a_new_output_may_be_any_node_a_placeholder_too(joint: StageGraph) -> None:
    x, b = joint.graph.find_nodes(op="placeholder")[0], body(joint.graph)[1]
    ports = [Port.of("saved", "x", torch.ones(3)), Port.of("saved", "b", torch.ones(3))]
    head = extract(joint, [(ports[0], x), (ports[1], b)])
    out = head({"input.x": torch.zeros(3)})
    assert torch.equal(out["saved.x"], torch.zeros(3))
    assert torch.equal(out["saved.b"], torch.ones(3))


def test_a_supplied_placeholder_is_replaced_and_an_unused_supply_is_no_port(joint: StageGraph) -> None:
    x, a = joint.graph.find_nodes(op="placeholder")[0], body(joint.graph)[0]
    mine, unused = Port.of("saved", "mine", torch.ones(3)), Port.of("saved", "unused", torch.ones(3))
    assert [p.name for p in extract(joint, ["output.1"], inputs=[(mine, x)]).inputs] == ["saved.mine"]
    assert [p.name for p in extract(joint, ["output.1"], inputs=[(unused, x), (mine, a)]).inputs] == ["saved.mine"]


def test_nodes_to_keep_stay_without_an_output(joint: StageGraph) -> None:
    assert named(extract(joint, ["output.1"], keep=[body(joint.graph)[3]])) == named(joint)
    assert named(extract(joint, [], keep=[body(joint.graph)[0]])) == ["sin_default"]


def test_nothing_to_keep_is_an_empty_graph(joint: StageGraph) -> None:
    empty = extract(joint, [])
    assert (named(empty), empty.inputs, empty({})) == ([], (), {})


def test_the_source_is_unchanged_and_shares_no_node(joint: StageGraph) -> None:
    text = str(joint.graph)
    part = extract(joint, ["output.1"])
    assert str(joint.graph) == text
    assert not set(part.graph.nodes) & set(joint.graph.nodes)


def test_attributes_and_guards_go_along() -> None:
    graphs = ap.trace(Function(lambda s, x, k: x * torch.tensor([1.0, 2.0]) * k), (leaf(2), 3))
    part = extract(graphs.forward, ["output"])
    assert part.guards == graphs.forward.guards
    assert torch.equal(part({"input.x": torch.ones(2)})["output"], torch.tensor([3.0, 6.0]))


def test_ancestors_stop_where_they_should(joint: StageGraph) -> None:
    a, b, c, _ = body(joint.graph)
    assert ancestors([c], stop=[b]) == {b, c}
    assert ancestors([c]) == {joint.graph.find_nodes(op="placeholder")[0], a, b, c}


def test_a_number_is_a_size_and_a_tensor_is_saved(joint: StageGraph) -> None:
    node = body(joint.graph)[0]
    assert saved_port(node, "n").role == "size"
    meta.set_value(node, torch.ones(3))
    assert saved_port(node, "n").role == "saved"


def test_an_unknown_output_is_refused_with_those_there_are(joint: StageGraph) -> None:
    with pytest.raises(GraphError, match="extract: no output port 'output.3'; there are output.1, output.2"):
        extract(joint, ["output.3"])


def test_a_node_of_another_graph_is_refused(joint: StageGraph) -> None:
    stranger = body(joint.copy().graph)[1]
    with pytest.raises(GraphError, match="extract: exp_default is a node of another graph"):
        extract(joint, ["output.1"], inputs=[(Port.of("saved", "b", torch.ones(3)), stranger)])


def test_a_cut_through_a_launch_or_a_tuple_is_refused() -> None:
    graph, x = fx.Graph(), torch.ones(3)
    node = graph.placeholder("x")
    launch = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (node, "sum", "0"))
    wait = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (launch,))
    both = graph.call_function(aten.sort.default, (wait,))
    meta.set_value(both, (x, x))
    item = graph.call_function(operator.getitem, (both, 0))
    graph.output((item,))
    stage = StageGraph(graph, [Port.of("input", "x", x)], [Port.of("output", "", x)])
    port = Port.of("saved", "cut", x)
    with pytest.raises(
        GraphError, match="cut at the launch all_reduce_default: its value is not ready; cut at its wait"
    ):
        extract(stage, ["output"], inputs=[(port, launch)])
    with pytest.raises(GraphError, match="cut at sort_default, which yields several values: cut at the items"):
        extract(stage, [(port, both)])
    assert named(extract(stage, ["output"], inputs=[(port, wait)])) == ["sort_default", "getitem"]


def test_ports_that_differ_in_dots_alone_get_different_placeholders() -> None:
    class Dotted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ParameterDict({"b": nn.Parameter(torch.ones(2))})
            self.a_b = nn.Parameter(torch.ones(2) * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.a["b"] + self.a_b

    module = Dotted()
    graphs = ap.trace(module, (leaf(2),))
    x = torch.ones(2)
    assert torch.equal(graphs.forward({**graphs.bind(module), **graphs.bind_inputs(x)})["output"], x * 3)
