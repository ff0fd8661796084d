"""What a captured graph begins, it ends: also when something goes wrong in between."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import annopipe as ap
from annopipe.errors import CaptureError
from annopipe.graphs.failures import PlacedError
from annopipe.graphs.replay import replay
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf

EVENTS: list[str] = []
COUNT = torch.zeros(3)


def _enter_block(name: str) -> str:
    EVENTS.append(f"({name}")
    return name


def _exit_block(name: str) -> None:
    EVENTS.append(f"{name})")


def set_grad_enabled(on: bool) -> None:
    EVENTS.append(f"grad {on}")


def fail(x: Tensor) -> Tensor:
    raise ValueError("out of luck")


def blocks(where: int) -> fx.GraphModule:
    """outer( inner( ) other( ) ), with a failure at one of its places."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made: list[fx.Node] = []
    calls: list[tuple[Any, Any]] = [
        (_enter_block, "outer"),
        (set_grad_enabled, False),
        (_enter_block, "inner"),
        (_exit_block, 2),
        (_enter_block, "other"),
        (_exit_block, 4),
        (set_grad_enabled, True),
        (_exit_block, 0),
    ]
    for index, (function, argument) in enumerate(calls):
        if index == where:
            graph.call_function(fail, (x,))
        made.append(graph.call_function(function, (made[argument] if function is _exit_block else argument,)))
    if where == len(made):
        graph.call_function(fail, (x,))
    graph.output(x)
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("where", range(9))
def test_every_block_that_has_begun_ends_once_and_in_order_wherever_it_fails(where: int) -> None:
    EVENTS.clear()
    with pytest.raises(PlacedError):
        replay(blocks(where), nn.Identity(), torch.ones(1))
    open_blocks: list[str] = []
    for event in EVENTS:
        if event.startswith("("):
            open_blocks.append(event[1:])
        elif event.endswith(")"):
            assert open_blocks.pop() == event[:-1]
    assert open_blocks == []
    assert not EVENTS or [event for event in EVENTS if event.startswith("grad")][-1:] != ["grad False"]
    assert len(EVENTS) == len(set(EVENTS))


def in_autocast(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        return self.a(x) * COUNT.add_(1)


def in_vmap(self: Any, x: Tensor) -> Tensor:
    return torch.vmap(lambda row: self.a(row) * COUNT.add_(1))(x)


def in_gradient(self: Any, x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (self.a(y) * COUNT.add_(1)).sum())(x)


@pytest.mark.parametrize("forward", [in_autocast, in_vmap, in_gradient])
def test_the_process_is_as_it_was_after_a_refusal(forward: Any) -> None:
    with pytest.raises(CaptureError, match="it changes a tensor|would mutate a captured Tensor"):
        ap.trace(Function(forward, a=nn.Linear(3, 3)), (leaf(2, 3),), strict=True)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()
    module = Function(lambda s, x: torch.vmap(s.a)(x), a=nn.Linear(3, 3))
    check_against_eager(module, (leaf(2, 3),), graphs=ap.trace(module, (leaf(2, 3),), strict=True))
