"""Operations that AOTAutograd chains by tokens are plain nodes in a graph."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import annopipe as ap
from annopipe.errors import CaptureError
from annopipe.graphs.ops import traits
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf

aten = torch.ops.aten


def test_a_check_of_a_result_stays_and_orders_nothing() -> None:
    graphs = check_against_eager(Function(lambda _, x: torch.linalg.inv(x)), (leaf(3, 3),))
    (check,) = graphs.forward.graph.find_nodes(op="call_function", target=aten._linalg_check_errors.default)
    assert traits(check).check
    assert not traits(check).fence
    with pytest.raises(torch.linalg.LinAlgError):
        graphs.forward(graphs.bind_inputs(torch.zeros(3, 3)))


def test_printing_is_a_fence(capfd: pytest.CaptureFixture[str]) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        torch.ops.aten._print("once")
        return x * 2

    graphs = ap.trace(Function(forward), (leaf(3),))
    assert capfd.readouterr().out == ""
    graphs.forward(graphs.bind_inputs(torch.ones(3)))
    assert capfd.readouterr().out == "once\n"
    (fence,) = graphs.forward.graph.find_nodes(op="call_function", target=aten._print.default)
    assert traits(fence).fence


def test_an_asynchronous_assertion_stays() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        torch._assert_async((x < 100).all())
        return x * 2

    graphs = check_against_eager(Function(forward), (leaf(3),))
    with pytest.raises(RuntimeError):
        graphs.forward(graphs.bind_inputs(torch.full((3,), 200.0)))


def test_a_collective_in_place_is_refused_with_what_to_use(group_of_one: dist.ProcessGroup) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x.detach().clone()
        dist.all_reduce(y)
        return x * y

    with pytest.raises(
        CaptureError, match="forward calls c10d.allreduce_.default, .* use torch.distributed._functional"
    ):
        ap.trace(Function(forward), (leaf(3),))
