"""Tensors from outside of the module, and operations whose result nobody uses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError
from tests.graphs.helpers import Eager, check_against_eager, tangent_values
from tests.graphs.modules import Function, leaf

SEEN: list[Any] = []
_LIBRARY = torch.library.Library("tests_capture", "DEF")
_LIBRARY.define("log(Tensor x) -> ()")
_LIBRARY.define("count(Tensor x) -> Tensor")
torch.library.register_fake("tests_capture::log", lambda x: None, lib=_LIBRARY)
torch.library.register_fake("tests_capture::count", torch.empty_like, lib=_LIBRARY)


@torch.library.impl(_LIBRARY, "log", "CompositeExplicitAutograd")
def _log(x: Tensor) -> None:
    SEEN.append(x.tolist())


@torch.library.impl(_LIBRARY, "count", "CompositeExplicitAutograd")
def _count(x: Tensor) -> Tensor:
    SEEN.append("count")
    return x.clone()


ops = torch.ops.tests_capture


class Logged(torch.autograd.Function):
    """Logs in forward and backward, and draws in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        ops.log(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        ops.log(y * 2)
        torch.rand(3)
        ops.count(y)
        return gradients[0] * y * torch.rand_like(y)


def logged(self: Any, x: Tensor) -> Tensor:
    ops.log(x)
    y = Logged.apply(self.linear(x))
    ops.count(x.detach())
    torch.rand(2)
    return self.linear(y)


@pytest.mark.parametrize("requires_grad", [True, False], ids=["input with gradient", "without"])
def test_operations_with_effects_stay_and_run_in_their_order_in_every_graph(requires_grad: bool) -> None:
    module, x = Function(logged, linear=nn.Linear(3, 3)), torch.randn(2, 3).requires_grad_(requires_grad)
    graphs = check_against_eager(module, (x,))
    SEEN.clear()
    eager = Eager(module, (x,))
    expected = list(SEEN)
    assert len(expected) == 5
    values = {**graphs.bind(module), **graphs.bind_inputs(x), **tangent_values(graphs, eager)}
    for backward in ([graphs.backward], [graphs.backward_input, graphs.backward_weight]):
        SEEN.clear()
        values |= graphs.forward(values)
        for graph in backward:
            values |= graph(values)
        assert expected == SEEN


def test_tracing_runs_no_operation() -> None:
    SEEN.clear()
    ap.trace(Function(logged, linear=nn.Linear(3, 3)), (leaf(2, 3),))
    assert SEEN == []


@pytest.mark.parametrize("where", ["attribute", "closure"])
def test_a_write_to_a_tensor_that_is_no_buffer_is_refused_before_it_happens(where: str) -> None:
    count = torch.zeros(3)
    module = Function(lambda s, x: x * (s.count if where == "attribute" else count).add_(1), count=count)
    with pytest.raises(
        CaptureError, match=r"it changes a tensor of shape \(3,\) .*: make it a buffer\n  at .*test_capture.py"
    ):
        ap.trace(module, (leaf(3),))
    assert torch.equal(count, torch.zeros(3))


def test_a_write_to_a_view_of_such_a_tensor_is_refused() -> None:
    count = torch.zeros(3)
    with pytest.raises(CaptureError, match="it changes a tensor"):
        ap.trace(Function(lambda s, x: x * s.count[0].add_(1), count=count), (leaf(3),))
    assert torch.equal(count, torch.zeros(3))


def test_what_is_computed_from_such_a_tensor_may_be_changed_and_follows_its_values() -> None:
    def masked(self: Any, x: Tensor) -> Tensor:
        bias = torch.zeros_like(self.mask, dtype=torch.float32).masked_fill_(self.mask, -1.0)
        return x + bias

    module = Function(masked, mask=torch.tensor([True, False, True]))
    graphs = check_against_eager(module, (leaf(3),))
    module.mask.logical_not_()
    check_against_eager(module, (leaf(3),), graphs=graphs)


def test_an_out_argument_from_outside_is_refused() -> None:
    out = torch.zeros(3)

    def forward(_: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            torch.add(x.detach(), 1, out=out)
        return x * out

    with pytest.raises(CaptureError, match="it changes a tensor"):
        ap.trace(Function(forward), (leaf(3),))


def test_a_tensor_of_nobody_that_wants_a_gradient_is_refused() -> None:
    hidden = nn.Linear(3, 3)
    module = Function(lambda s, x: s.layers[0](x), layers=[hidden])
    with pytest.raises(
        CaptureError, match=r"it uses a tensor of shape \(3, 3\) .* but requires grad: make it a parameter"
    ):
        ap.trace(module, (leaf(2, 3),))


def test_a_tensor_of_nobody_may_be_used_without_gradient() -> None:
    outside = torch.randn(3, requires_grad=True)

    def forward(_: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            factor = outside * 2
        return x * factor * outside.detach()

    check_against_eager(Function(forward), (leaf(3),))


def test_the_collectors_of_dead_code_are_left_as_they_were() -> None:
    before = torch.fx.Graph.eliminate_dead_code, torch.set_rng_state
    ap.trace(nn.Linear(2, 2), (leaf(2, 2),))
    assert (torch.fx.Graph.eliminate_dead_code, torch.set_rng_state) == before
