"""Stage graphs are called by port name; what does not fit is refused."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.ports import Port, port_name
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes
from tests.graphs.modules import Function, leaf, plain


@pytest.fixture(scope="module")
def graphs() -> ap.StageGraphs:
    return ap.trace(nn.Linear(4, 3), (leaf(2, 4),))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3, 4), r"port input.input: expected shape \(2, 4\), got \(3, 4\); trace again"),
        (torch.ones(2), r"port input.input: expected shape \(2, 4\), got \(2,\)"),
        (torch.ones(2, 4, dtype=torch.float64), "port input.input: expected torch.float32, got torch.float64"),
        (3, "port input.input: expected a tensor, got int"),
        (None, "port input.input: expected a tensor, got NoneType"),
    ],
)
def test_a_value_that_does_not_fit_its_port_is_refused(graphs: ap.StageGraphs, value: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graphs.forward({**graphs.bind(nn.Linear(4, 3)), "input.input": value})


def test_a_tangent_that_does_not_fit_is_refused(graphs: ap.StageGraphs) -> None:
    module = nn.Linear(4, 3)
    values = {**graphs.bind(module), **graphs.bind_inputs(plain(2, 4))}
    assert graphs.backward is not None
    with pytest.raises(GraphError, match=r"port tangent.output: expected shape \(2, 3\), got \(2, 4\)"):
        graphs.backward({**values, **graphs.forward(values), "tangent.output": plain(2, 4)})


def test_missing_values_are_named_with_where_they_come_from(graphs: ap.StageGraphs) -> None:
    with pytest.raises(
        GraphError, match=r"no value for 1 of 3 input ports: input.input; inputs come from graphs.bind_inputs"
    ):
        graphs.forward(graphs.bind(nn.Linear(4, 3)))
    wide = StageGraph(torch.fx.Graph(), [Port(f"input.{i}", "input", str(i)) for i in range(7)], [])
    with pytest.raises(GraphError, match=r"no value for 7 of 7 input ports: input.0, .*, input.4, \.\.\.; inputs come"):
        wide({})


def test_names_that_no_port_has_are_ignored(graphs: ap.StageGraphs) -> None:
    module = nn.Linear(4, 3)
    values = {**graphs.bind(module), **graphs.bind_inputs(plain(2, 4)), "other": None}
    assert set(graphs.forward(values)) == {"output", "saved.input.input"}


def test_a_port_is_found_by_name_or_refused(graphs: ap.StageGraphs) -> None:
    assert graphs.forward.port("param.weight").shape == (3, 4)
    with pytest.raises(GraphError, match="no port 'nobody'; there are param.weight, param.bias, input.input, output"):
        graphs.forward.port("nobody")


def test_a_copy_has_nodes_of_its_own_and_the_same_results(graphs: ap.StageGraphs) -> None:
    copy = graphs.forward.copy()
    assert not set(copy.graph.nodes) & set(graphs.forward.graph.nodes)
    assert [n.name for n in body(copy.graph)] == [n.name for n in body(graphs.forward.graph)]
    assert [meta.placed(n) for n in body(copy.graph)] == [meta.placed(n) for n in body(graphs.forward.graph)]
    module = nn.Linear(4, 3)
    values = {**graphs.bind(module), **graphs.bind_inputs(plain(2, 4))}
    assert torch.equal(copy(values)["output"], graphs.forward(values)["output"])


def test_a_graph_runs_without_autograd_and_under_autocast_as_without(graphs: ap.StageGraphs) -> None:
    module = nn.Linear(4, 3)
    values = {**graphs.bind(module), **graphs.bind_inputs(leaf(2, 4))}
    expected = graphs.forward(values)["output"]
    with torch.autocast("cpu", torch.bfloat16):
        found = graphs.forward(values)["output"]
        assert torch.is_autocast_enabled("cpu")
    assert not found.requires_grad
    assert torch.equal(found, expected)


def test_a_module_takes_its_ports_by_position(graphs: ap.StageGraphs) -> None:
    module, x = nn.Linear(4, 3), plain(2, 4)
    with torch.no_grad():
        output, _ = graphs.forward.module(module.weight, module.bias, x)
    assert torch.equal(output, module(x))
    assert graphs.forward.module is graphs.forward.module


def test_ports_with_one_name_are_refused() -> None:
    port = Port("input.x", "input", "x")
    with pytest.raises(GraphError, match="two input ports have the same name: input.x"):
        StageGraph(torch.fx.Graph(), [port, port], [])
    with pytest.raises(GraphError, match="two output ports have the same name: input.x"):
        StageGraph(torch.fx.Graph(), [], [port, port])


def test_a_role_that_does_not_exist_is_refused() -> None:
    with pytest.raises(GraphError, match="port 'a': role 'guess' is not one of"):
        Port("a", "guess", "a")  # type: ignore[arg-type]


def test_ports_tell_what_fits() -> None:
    tensor = Port.of("input", "x", torch.ones(2, 3))
    assert (tensor.name, tensor.shape, tensor.dtype, tensor.device) == ("input.x", (2, 3), torch.float32, "cpu")
    assert tensor.mismatch(torch.zeros(2, 3)) is None
    number = Port.of("size", "n", 3)
    assert [number.mismatch(value) for value in (3, 2.5, True)] == [None, None, None]
    assert number.mismatch(torch.ones(1)) == "expected a number, got Tensor"
    unknown = Port("saved.x", "saved", "x", torch.float32, ("u0", 3))
    assert unknown.mismatch(torch.ones(7, 3)) is None
    assert unknown.mismatch(torch.ones(7, 4)) == "expected shape ('u0', 3), got (7, 4)"


def test_ports_tell_another_device() -> None:
    port = dataclasses.replace(Port.of("input", "x", torch.ones(2, 3)), device="cuda")
    assert port.mismatch(torch.ones(2, 3)) == "expected a tensor on cuda, got one on cpu"
    assert port.mismatch(torch.ones(2, 3, device="meta")) is None


def test_ports_lay_tensors_out() -> None:
    port = Port.of("input", "x", torch.ones(2, 3))
    for other in (plain(3, 2).t(), plain(3).expand(2, 3)):
        assert port.laid_out(other).stride() == (3, 1)
        assert torch.equal(port.laid_out(other), other)
    for fits in (plain(2, 3), plain(4, 3)[::2].new_empty(2, 3)):
        assert port.laid_out(fits) is fits
    row, nothing = plain(3, 1).t(), plain(3, 0).t()  # the same in memory
    assert Port.of("input", "x", torch.ones(1, 3)).laid_out(row) is row
    assert Port.of("input", "x", torch.ones(0, 3)).laid_out(nothing) is nothing
    whole = plain(2, 3)
    assert Port.of("input", "x", torch.ones(3).expand(2, 3)).laid_out(whole) is whole


class Flat(torch.autograd.Function):
    """Reads the memory of its input, and of its gradient, as a kernel does that has asked for contiguous ones."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().as_strided((6,), (1,)) * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous().as_strided((2, 3), (3, 1)) * 2


@torch.library.custom_op("stage_graph_test::flat", mutates_args=())
def flat(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(6).copy_(x.as_strided((6,), (1,)))


flat.register_fake(lambda x: x.new_empty(6))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("read", [Flat.apply, lambda x: flat(x.detach().contiguous()) + x.sum()], ids=["view", "op"])
def test_where_memory_is_read_as_it_lies_it_lies_as_it_did_in_the_example(read: Any, strict: bool) -> None:
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    graphs = ap.trace(Function(lambda _, x: read(x)), (x,), strict=strict)
    other = torch.arange(6.0).view(3, 2).t()
    out = graphs.forward(graphs.bind_inputs(other))
    assert torch.equal(out["output"], read(other))
    assert graphs.backward is not None
    tangent = torch.stack([torch.arange(6.0), torch.zeros(6)], 1)[:, 0]
    found = graphs.backward({**out, "tangent.output": tangent})
    (expected,) = torch.autograd.grad(read(x), x, tangent)
    assert torch.equal(found["input_grad.x"], expected)


def test_ports_are_named_by_role_and_label() -> None:
    assert [port_name("loss", ""), port_name("param", "a.b")] == ["loss", "param.a.b"]
    assert Port.of("param", "a.w", torch.ones(1), label="b.w").name == "param.b.w"
    assert Port.of("param", "a.w", torch.ones(1), label="b.w").source == "a.w"
    assert Port.of("input", "x", torch.ones(1)).with_lane("F").name == "F.input.x"


def test_nodes_of_a_graph_by_what_they_are(graphs: ap.StageGraphs) -> None:
    graph = graphs.forward.graph
    assert [n.name for n in input_nodes(graph)] == ["param_weight", "param_bias", "input_input"]
    assert [n.name for n in body(graph)] == ["t", "addmm"]
    assert output_nodes(graph) == (body(graph)[1], input_nodes(graph)[2])
    single = torch.fx.Graph()
    single.output(single.placeholder("x"))
    assert len(output_nodes(single)) == 1


def test_the_text_of_a_graph_tells_its_size(graphs: ap.StageGraphs) -> None:
    assert repr(graphs.forward) == "StageGraph(3 inputs, 2 nodes, 2 outputs)"


def test_an_output_that_is_known_when_traced_is_returned_as_it_is() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("x"), 3))
    stage = StageGraph(
        graph, [Port.of("input", "x", torch.ones(1))], [Port("output.0", "output", "0"), Port("size.n", "size", "n")]
    )
    assert stage.copy()({"input.x": torch.ones(1)})["size.n"] == 3


def test_the_same_module_traced_twice_gives_the_same_names() -> None:
    module = Function(lambda s, x: s.a(x).sin(), a=nn.Linear(2, 2))
    first, second = (ap.trace(module, (leaf(1, 2),)) for _ in range(2))
    assert str(first.forward.graph) == str(second.forward.graph)
    assert first.forward.outputs == second.forward.outputs
