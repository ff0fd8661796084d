"""The input half I and the weight half W of a backward."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.graphs.ops import launch_of, traits
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, PlainMoE
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf, plain

aten = torch.ops.aten
ONE_LAYER = dataclasses.replace(DeepSeekV3Config.tiny(), layers=1, experts=4)


def halves(graphs: ap.StageGraphs) -> tuple[StageGraph, StageGraph]:
    assert graphs.backward_input is not None
    assert graphs.backward_weight is not None
    return graphs.backward_input, graphs.backward_weight


def crossing(graphs: ap.StageGraphs) -> list[str]:
    first, second = halves(graphs)
    made = {p.name for p in first.outputs}
    return [p.name for p in second.inputs if p.name in made]


def count(graph: StageGraph, target: Any) -> int:
    return len(graph.graph.find_nodes(op="call_function", target=target))


def test_weight_gradients_wait_and_input_gradients_do_not() -> None:
    graphs = ap.trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (leaf(5, 3),))
    first, second = halves(graphs)
    assert [p.name for p in first.outputs if p.role == "input_grad"] == ["input_grad.input"]
    assert {p.role for p in second.outputs} == {"param_grad"}
    assert (count(first, aten.mm.default), count(second, aten.mm.default)) == (2, 2)
    assert crossing(graphs) == ["saved.backward.tanh_backward"]


def test_the_halves_are_split_once() -> None:
    graphs = ap.trace(nn.Linear(3, 4), (leaf(5, 3),))
    assert graphs.backward_input is graphs.backward_input


@pytest.mark.parametrize(
    ("moe", "requires_grad"), [(None, True), (None, False), (PlainMoE, False)], ids=["middle", "first", "lists, first"]
)
def test_every_launch_is_in_the_input_half(group_of_one: dist.ProcessGroup, moe: Any, requires_grad: bool) -> None:
    options = {} if moe is None else {"moe": moe}
    stage = DeepSeekV3Stage(ONE_LAYER, group=group_of_one, **options)
    graphs = ap.trace(stage, (leaf(2, 5, 32) if requires_grad else plain(2, 5, 32),))
    first, second = halves(graphs)
    launches = [n for n in body(first.graph) if traits(n).launch]
    assert len(launches) == 2
    assert [launch_of(n) for n in body(first.graph) if traits(n).wait] == launches
    assert not any(traits(n).launch or traits(n).wait for n in body(second.graph))
    assert len(body(second.graph)) > 30


def test_a_first_stage_without_launches_has_an_empty_input_half() -> None:
    graphs = check_against_eager(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), (plain(2, 3),))
    first, second = halves(graphs)
    assert body(first.graph) == []
    assert len(body(second.graph)) == len(body(graphs.backward.graph))


def test_with_all_parameters_frozen_the_weight_half_is_empty() -> None:
    graphs = check_against_eager(nn.Linear(3, 3).requires_grad_(False), (leaf(2, 3),))
    first, second = halves(graphs)
    assert (body(second.graph), second.outputs) == ([], ())
    assert len(body(first.graph)) == len(body(graphs.backward.graph))


def test_a_parameter_gradient_that_the_input_half_finishes_is_its_output() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.layer_norm(x @ self.w, (3,), self.scale, self.shift)

    module = Function(
        forward,
        w=nn.Parameter(torch.randn(3, 3)),
        scale=nn.Parameter(torch.ones(3)),
        shift=nn.Parameter(torch.zeros(3)),
    )
    graphs = check_against_eager(module, (leaf(2, 3),))
    first, second = halves(graphs)
    assert {p.name for p in first.outputs if p.role == "param_grad"} == {"param_grad.scale", "param_grad.shift"}
    assert [p.name for p in second.outputs] == ["param_grad.w"]
    assert crossing(graphs) == ["saved.backward.getitem_3"]  # one item of the layer norm's backward, not the tuple


def test_what_crosses_is_held_once() -> None:
    stage = DeepSeekV3Stage(ONE_LAYER)
    graphs = ap.trace(stage, (leaf(2, 5, 32),))
    first, _ = halves(graphs)
    values = {**graphs.bind(stage), **graphs.bind_inputs(plain(2, 5, 32)), "tangent.output": plain(2, 5, 32)}
    values |= graphs.forward(values)
    values |= first(values)
    tensors = [values[name] for name in crossing(graphs) if isinstance(values[name], Tensor)]
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


def test_a_view_is_made_again_in_the_weight_half() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return (self.linear(x).view(2, 2, 3).sin() * 2).transpose(0, 1)

    graphs = check_against_eager(Function(forward, linear=nn.Linear(3, 3)), (leaf(4, 3),))
    saved = "clone_1" if torch.__version__.startswith("2.11.") else "mul_2"
    assert crossing(graphs) == [f"saved.backward.{saved}"]
    assert count(halves(graphs)[1], aten.reshape.default) >= 1


def test_a_gradient_that_is_the_tangent_itself_is_an_output_of_the_weight_half() -> None:
    graphs = check_against_eager(Function(lambda s, x: x + s.w, w=nn.Parameter(torch.ones(3))), (leaf(3),))
    first, second = halves(graphs)
    assert [p.name for p in first.outputs] == ["input_grad.x"]
    assert [p.name for p in second.outputs] == ["param_grad.w"]
    assert crossing(graphs) == []


def test_no_unfinished_transfer_crosses(group_of_one: dist.ProcessGroup) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.all_to_all_single_autograd(self.linear(x), [2], [2], group_of_one)

    graphs = check_against_eager(Function(forward, linear=nn.Linear(3, 3)), (plain(2, 3),))
    first, _ = halves(graphs)
    assert crossing(graphs) == ["saved.backward.wait_tensor_1"]
    assert [launch_of(n) is not None for n in body(first.graph) if traits(n).wait] == [True]


def test_random_numbers_of_the_backward_are_drawn_in_its_order() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            x, w = ctx.saved_tensors
            for_weight = gradients[0] * x * torch.rand_like(x)  # drawn first, needed last
            return gradients[0] * w * torch.rand_like(x), for_weight

    module = Function(lambda s, x: Noisy.apply(x, s.w).sin(), w=nn.Parameter(torch.ones(3)))
    graphs = check_against_eager(module, (leaf(3),))
    assert not any(traits(n).random for n in body(halves(graphs)[1].graph))
