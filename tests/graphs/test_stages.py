"""Stages of every shape, traced: outputs, buffers, random state and all gradients bitwise equal to eager; I + W too."""

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from tests.graphs.helpers import check_against_eager


class Pair(NamedTuple):
    first: Tensor
    second: Any


class Function(nn.Module):
    """A forward from a function, with submodules."""

    def __init__(self, function: Any, **children: Any) -> None:
        super().__init__()
        self._function = function
        for name, child in children.items():
            if isinstance(child, Tensor) and not isinstance(child, nn.Parameter):
                self.register_buffer(name, child)
            else:
                setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self, *args, **kwargs)


def given(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype).requires_grad_(grad)


def tied() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def lora() -> nn.Module:
    base = nn.Linear(4, 4).requires_grad_(requires_grad=False)
    down, up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
    return Function(lambda s, x: s.base(x) + s.up(s.down(x)), base=base, down=down, up=up)


def averaging(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return x * self.mean


def old_buffer(self: Any, x: Tensor) -> Tensor:
    y = x * self.scale.clone()
    self.scale.mul_(2)
    return y


class Doubling(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x * 3


STAGES: dict[str, tuple[Any, tuple]] = {
    "linear": (lambda: nn.Linear(4, 3), (given(2, 4),)),
    "first stage": (lambda: nn.Linear(4, 3), (given(2, 4, grad=False),)),
    "float64": (lambda: nn.Linear(4, 3).double(), (given(2, 4, dtype=torch.float64),)),
    "bfloat16": (lambda: nn.Linear(4, 3).bfloat16(), (given(2, 4, dtype=torch.bfloat16),)),
    "transformer layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True),
        (given(2, 5, 8),),
    ),
    "sequence first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2), (given(2, 5, 8),)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (given(5, 4),)),
    "moving average": (lambda: Function(averaging, mean=torch.ones(4)), (given(5, 4),)),
    "old buffer": (lambda: Function(old_buffer, scale=torch.ones(4)), (given(5, 4),)),
    "tied weights": (tied, (given(2, 4),)),
    "frozen": (lambda: nn.Linear(4, 3).requires_grad_(requires_grad=False), (given(2, 4),)),
    "nothing to differentiate": (nn.Tanh, (given(2, 4, grad=False),)),
    "lora": (lora, (given(2, 4),)),
    "unused parameter": (lambda: Function(lambda s, x: s.a(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (given(2, 4),)),
    "view of the input": (lambda: Function(lambda s, x: x.view(-1)), (given(2, 4),)),
    "the input itself": (lambda: Function(lambda s, x: x), (given(2, 4),)),
    "same output twice": (lambda: Function(lambda s, x: (x.sin(), x.sin(), x)), (given(2, 4),)),
    "output is saved": (lambda: Function(lambda s, x: x.exp()), (given(2, 4),)),
    "embedding": (lambda: nn.Embedding(9, 4), (torch.tensor([[1, 2], [3, 1]]),)),
    "custom function": (lambda: Function(lambda s, x: Doubling.apply(s.a(x)), a=nn.Linear(4, 4)), (given(2, 4),)),
    "not contiguous": (lambda: nn.Linear(4, 3), (given(4, 2).detach().t().requires_grad_(),)),
    "no rows": (lambda: nn.Linear(4, 3), (given(0, 4),)),
    "a scalar": (lambda: Function(lambda s, x: x * 2), (torch.tensor(1.5, requires_grad=True),)),
    "nested output": (
        lambda: Function(lambda s, x, m: {"a": Pair(x * 2, None), "b": [m, 3, "text", (x > 0)]}),
        (given(2, 4), torch.tensor([1, 2])),
    ),
    "nested input": (
        lambda: Function(lambda s, t, n=2: t["x"] * n + t["more"][0].sum()),
        ({"x": given(2, 4), "more": [given(3)]},),
    ),
    "detached part": (lambda: Function(lambda s, x: x * x.detach().sin()), (given(2, 4),)),
    "no grad part": (lambda: Function(lambda s, x: x * averaging_free(x)), (given(2, 4),)),
    "in place on a copy": (lambda: Function(lambda s, x: x.clone().add_(1).mul_(x)), (given(2, 4),)),
    "random numbers": (lambda: Function(lambda s, x: x * torch.rand_like(x) + torch.rand(4)), (given(2, 4),)),
    "unused random numbers": (
        lambda: Function(lambda s, x: (torch.rand(3), torch.dropout(x, 0.5, train=True))[1]),
        (given(2, 4),),
    ),
}


def averaging_free(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.mean()


@pytest.mark.parametrize("name", STAGES)
def test_a_traced_stage_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    build, args = STAGES[name]
    check_against_eager(build(), args)


def test_one_tensor_passed_for_two_arguments_stays_two_inputs() -> None:
    x = given(2, 4)
    graphs = ap.trace(Function(lambda s, a, b: a * 2 + b * 3), (x, x))
    assert [port.source for port in graphs.forward.inputs] == ["a", "b"] or len(graphs.forward.inputs) == 2
    values = graphs.bind_inputs(torch.ones(2, 4), torch.zeros(2, 4))
    assert torch.equal(graphs.forward(values)["output"], torch.full((2, 4), 2.0))


@pytest.mark.parametrize("sizes", [[2, 3], [0, 5], [5, 0], [1, 4]])
def test_one_trace_serves_every_split(sizes: list[int]) -> None:
    def routed(self: Any, x: Tensor, n: Tensor) -> Tensor:
        parts = x.split(n.tolist())
        return torch.cat([linear(part).relu() for linear, part in zip(self.experts, parts, strict=True)])

    torch.manual_seed(0)
    module = Function(routed, experts=nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))
    graphs = ap.trace(module, (given(5, 4), torch.tensor([3, 2])))
    check_against_eager(module, (given(5, 4), torch.tensor(sizes)), graphs=graphs)


def test_two_microbatches_in_flight_do_not_mix() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    graphs = ap.trace(module, (given(3, 4),))
    assert graphs.backward is not None
    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    bound = graphs.bind(module)
    saved = [{**bound, **graphs.bind_inputs(x), **graphs.forward({**bound, **graphs.bind_inputs(x)})} for x in inputs]
    for x, values in reversed(list(zip(inputs, saved, strict=True))):
        found = graphs.backward({**values, "tangent.output": torch.ones(3, 4)})
        expected = torch.autograd.grad(module(x).sum(), [*module.parameters(), x])
        gradients = graphs.parameter_gradients(found)
        for (name, _), want in zip(module.named_parameters(), expected, strict=False):
            assert torch.equal(gradients[name], want)
        assert torch.equal(found["input_grad.input"], expected[-1])


def test_a_loss_has_a_port_and_only_it_has_a_tangent() -> None:
    module = nn.Linear(4, 3)
    graphs = check_against_eager(module, (given(2, 4),), loss_fn=F.mse_loss, target=torch.ones(2, 3))
    assert [port.name for port in graphs.backward.inputs if port.role == "tangent"] == ["tangent.loss"]
    assert [port.role for port in graphs.forward.outputs[:2]] == ["loss", "output"]


def test_a_module_on_meta_is_traced_without_memory() -> None:
    graphs = ap.trace(nn.Linear(4, 3, device="meta"), (torch.empty(2, 4, device="meta"),))
    assert {port.role for port in graphs.forward.inputs} == {"param", "input"}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_are_traced_where_autograd_is_off(context: Any) -> None:
    module, x = nn.Linear(4, 3), given(2, 4)
    with context():
        graphs = ap.trace(module, (x,))
    assert graphs.backward is not None


def test_every_weight_gradient_that_can_wait_is_in_the_weight_half() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    graphs = ap.trace(module, (given(2, 4),))
    assert graphs.backward_input is not None
    assert graphs.backward_weight is not None
    assert [port.role for port in graphs.backward_input.outputs if port.role != "saved"] == ["input_grad"]
    sources = [port.source for port in graphs.backward_weight.outputs]
    assert sorted(sources) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    first = ap.trace(module, (given(2, 4, grad=False),))
    assert first.backward_input is not None
    assert first.backward_input.outputs == (), "a first stage without collectives has nothing to send back"


def test_views_of_parameters_and_of_saved_values_are_not_saved() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x.exp()
        return self.a(y) + y.view(2, 4) * y.t().t()

    graphs = ap.trace(Function(forward, a=nn.Linear(4, 4, bias=False)), (given(2, 4),))
    saved = [port.source for port in graphs.forward.outputs if port.role == "saved"]
    assert saved == ["exp"]
