"""How a module's values reach the ports of its graphs and come back."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError, GraphError
from tests.graphs.helpers import assert_same
from tests.graphs.modules import Function, buffered, leaf, plain


def test_parameters_and_buffers_are_bound_by_name_as_the_module_has_them_now() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    graphs = ap.trace(module, (leaf(4, 3),))
    bound = graphs.bind(module)
    assert bound["param.0.weight"] is module[0].weight
    assert bound["buffer.1.running_mean"] is module[1].running_mean
    assert set(bound) == {f"param.{n}" for n, _ in module.named_parameters()} | {
        f"buffer.{n}" for n, _ in module.named_buffers()
    }


def test_two_microbatches_in_flight_do_not_mix() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    graphs = ap.trace(module, (leaf(3, 4),))
    assert graphs.backward is not None
    inputs = [leaf(3, 4) for _ in range(2)]
    bound = graphs.bind(module)
    flying = [{**bound, **graphs.bind_inputs(x), **graphs.forward({**bound, **graphs.bind_inputs(x)})} for x in inputs]
    for x, values in reversed(list(zip(inputs, flying, strict=True))):
        found = graphs.backward({**values, "tangent.output": torch.ones(3, 4)})
        expected = torch.autograd.grad(module(x).sum(), [*module.parameters(), x])
        names = [name for name, _ in module.named_parameters()]
        gradients = graphs.parameter_gradients(found)
        assert_same([*(gradients[name] for name in names), found["input_grad.input"]], list(expected))


def test_gradients_of_ports_with_one_source_are_added_up() -> None:
    graphs = ap.trace(nn.Linear(2, 2), (leaf(1, 2),))
    assert graphs.backward is not None
    twice = ap.StageGraph(graphs.backward.graph, graphs.backward.inputs, [])
    twice.outputs = (
        ap.Port("param_grad.a", "param_grad", "w"),
        ap.Port("param_grad.b", "param_grad", "w"),
        ap.Port("input_grad.x", "input_grad", "x"),
    )
    tied = ap.StageGraphs(
        graphs.forward, twice, graphs.arguments, graphs.target_arguments, graphs.layout, graphs.modes, graphs.frozen
    )
    values = {"param_grad.a": torch.ones(2), "param_grad.b": torch.full((2,), 2.0), "input_grad.x": torch.zeros(2)}
    assert_same(tied.parameter_gradients(values), {"w": torch.full((2,), 3.0)})


def test_a_tied_weight_has_one_gradient_under_its_first_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).tanh())

    module = Tied()
    graphs = ap.trace(module, (leaf(3, 2),))
    assert graphs.backward is not None
    assert [p.source for p in graphs.backward.outputs if p.role == "param_grad"] == ["a.weight"]
    assert graphs.bind(module)["param.a.weight"] is module.a.weight


def test_the_example_tensors_are_not_kept() -> None:
    module, x, target = nn.Linear(2, 2), leaf(3, 2), plain(3, 2)
    graphs = ap.trace(module, (x,), loss_fn=torch.nn.functional.mse_loss, target=target)
    kept = [weakref.ref(x), weakref.ref(target), weakref.ref(module.weight)]
    del x, target, module
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert graphs.arguments.paths == ("input",)


def test_buffer_updates_are_written_when_asked_and_once() -> None:
    def count(self: Function, x: Tensor) -> Tensor:
        self.n.add_(1)
        return x * self.n

    module = buffered(count, n=torch.zeros(3))
    graphs = ap.trace(module, (leaf(3),))
    for turn in (1, 2):
        out = graphs.forward({**graphs.bind(module), **graphs.bind_inputs(plain(3))})
        assert torch.equal(module.n, torch.full((3,), turn - 1.0))
        graphs.write_buffers(module, out)
        assert torch.equal(module.n, torch.full((3,), float(turn)))
    with pytest.raises(GraphError, match="Linear has no buffer 'n' to update"):
        graphs.write_buffers(nn.Linear(1, 1), out)


def test_a_module_that_does_not_fit_is_refused() -> None:
    graphs = ap.trace(nn.Linear(4, 3), (plain(2, 4),))
    with pytest.raises(GraphError, match="Linear has no param 'bias', which the graphs were traced with"):
        graphs.bind(nn.Linear(4, 3, bias=False))
    with pytest.raises(
        GraphError, match=r"param weight: expected shape \(3, 4\), got \(3, 5\); trace this module again"
    ):
        graphs.bind(nn.Linear(5, 3))
    with pytest.raises(GraphError, match="param weight: expected torch.float32, got torch.float64"):
        graphs.bind(nn.Linear(4, 3).double())


def test_another_mode_than_the_traced_one_is_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    graphs = ap.trace(module, (leaf(2, 3),))
    module[1].eval()
    with pytest.raises(CaptureError, match="1 is in evaluation mode now and was not when traced: trace again"):
        graphs.bind(module)
    graphs = ap.trace(module.eval(), (leaf(2, 3),))
    with pytest.raises(CaptureError, match="the module is in training mode now"):
        graphs.bind(module.train())


def test_a_parameter_that_wants_a_gradient_since_is_refused_and_one_that_does_not_is_fine() -> None:
    module = nn.Linear(3, 3).requires_grad_(False)
    graphs = ap.trace(module, (leaf(2, 3),))
    module.bias.requires_grad_()
    with pytest.raises(CaptureError, match="parameter bias requires grad now and did not when traced: trace again"):
        graphs.bind(module)
    graphs = ap.trace(module, (leaf(2, 3),))
    graphs.bind(module.requires_grad_(False))


def test_the_result_is_what_forward_would_have_returned() -> None:
    def forward(_: Function, x: Tensor) -> object:
        return {"a": (x * 2, None), 3: [x.sum(), "text"]}

    graphs = ap.trace(Function(forward), (leaf(2),))
    x = torch.ones(2)
    result = graphs.result(graphs.forward(graphs.bind_inputs(x)))
    assert_same(result, {"a": (x * 2, None), 3: [x.sum(), "text"]})


def test_the_result_may_be_a_container_registered_without_names() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def forward(_: Function, x: Tensor) -> object:
        return outputs.BaseModelOutput(last_hidden_state=x * 2)

    graphs = ap.trace(Function(forward), (leaf(2),))
    result = graphs.result(graphs.forward(graphs.bind_inputs(torch.ones(2))))
    assert [p.name for p in graphs.forward.outputs] == ["output.last_hidden_state"]
    assert isinstance(result, outputs.BaseModelOutput)
    assert torch.equal(result.last_hidden_state, torch.full((2,), 2.0))


def test_a_stage_without_tensors_as_outputs_is_fine_without_gradients() -> None:
    graphs = ap.trace(Function(lambda _, x: None), (plain(2),))
    assert graphs.result(graphs.forward(graphs.bind_inputs(plain(2)))) is None


def test_another_default_dtype_is_refused() -> None:
    module = Function(lambda _, x: x * torch.ones(2))
    graphs = ap.trace(module, (torch.ones(2).requires_grad_(),))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(CaptureError, match=r"default dtype was torch.float32 .* is torch.float64 now: set it back"):
            graphs.bind(module)
    finally:
        torch.set_default_dtype(torch.float32)
    graphs.bind(module)
