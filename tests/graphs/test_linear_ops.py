from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

import annopipe as ap
from annopipe.graphs.linear_ops import is_linear, moves_only
from annopipe.graphs.stage_graph import body


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def nodes(function: Callable[[Tensor], Tensor]) -> list[fx.Node]:
    return body(ap.trace(Applied(function), (torch.ones(4, 3),)).forward.graph)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x.t().to(torch.float64), x.t().double()]),
        lambda x: nn.functional.pad(x, (0, 1)),
        lambda x: torch.stack(x.split(2)).clone(),
    ],
    ids=["cast", "pad", "split"],
)
def test_copies_views_and_casts_only_move(function: Callable[[Tensor], Tensor]) -> None:
    found = nodes(function)
    assert found
    assert all(moves_only(node) and is_linear(node) for node in found)


@pytest.mark.parametrize("function", [lambda x: x / 3, lambda x: x * 0.5, lambda x: x + x], ids=["div", "mul", "add"])
def test_sums_and_scales_are_linear_and_do_not_only_move(function: Callable[[Tensor], Tensor]) -> None:
    (node,) = nodes(function)
    assert is_linear(node)
    assert not moves_only(node)


@pytest.mark.parametrize(
    "function",
    [lambda x: x * x, lambda x: x + 1, lambda x: x.exp(), lambda x: nn.functional.pad(x, (0, 1), value=2.0)],
    ids=["square", "shift", "exp", "pad with twos"],
)
def test_the_rest_is_not_linear(function: Callable[[Tensor], Tensor]) -> None:
    assert not all(is_linear(node) for node in nodes(function))
