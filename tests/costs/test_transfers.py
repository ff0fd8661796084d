"""What launches transfer: the message of every collective, also several at once, in place, and of other libraries."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import fx

import annopipe as ap
from annopipe.costs.sizes import Sizes
from annopipe.costs.transfers import Groups, Message, message
from annopipe.graphs import meta
from annopipe.graphs.ops import traits
from annopipe.graphs.stage_graph import StageGraph
from tests.costs.toy import fake_ranks, traced

RANKS = 4
_ops = torch.ops._c10d_functional


def sent(function: Callable[..., Any], *tensors: torch.Tensor) -> Message:
    class Call(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    with fake_ranks(RANKS):
        graph = traced(Call(), *tensors)
        (launch,) = [node for node in graph.graph.nodes if traits(node).launch]
        return message(launch, Groups(), Sizes(graph))


def world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


@pytest.mark.parametrize(
    ("function", "kind", "elements"),
    [
        (lambda x: fc.wait_tensor(_ops.all_gather_into_tensor(x, RANKS, "0")), "all_gather", 4 * 24),
        (lambda x: fc.wait_tensor(_ops.reduce_scatter_tensor(x, "sum", RANKS, "0")), "reduce_scatter", 24),
        (lambda x: fc.wait_tensor(fc.all_reduce(x, "sum", world())), "all_reduce", 24),
        (lambda x: fc.wait_tensor(fc.broadcast(x, 0, world())), "broadcast", 24),
        (lambda x: fc.wait_tensor(fc.all_to_all_single(x, None, None, world())), "all_to_all", 24),
        (lambda x: fc.wait_tensor(fc.all_to_all_single(x, [1, 1, 1, 1], [2] * 4, world())), "all_to_all", 24),
    ],
)
def test_a_message_is_the_whole_of_what_a_rank_sends_or_gets(function, kind: str, elements: int) -> None:
    found = sent(function, torch.empty(8, 3, device="meta", dtype=torch.bfloat16))
    assert found == Message(kind, "0", RANKS, elements, element_bytes=2, is_floating=True)


def test_several_tensors_in_one_launch_add_up() -> None:
    x, y = torch.empty(8, device="meta"), torch.empty(4, 5, device="meta")
    found = sent(lambda a, b: [fc.wait_tensor(t) for t in fc.all_reduce_coalesced([a, b], "sum", world())], x, y)
    assert (found.kind, found.elements) == ("all_reduce", 28)


def test_counts_are_no_floating_point_message() -> None:
    counts = torch.empty(4, dtype=torch.int64, device="meta")
    assert not sent(lambda x: fc.wait_tensor(fc.all_to_all_single(x, None, None, world())), counts).is_floating


def foreign_launch() -> fx.Node:
    """A launch of an operator that another library brings, as a node with fake values."""
    graph = fx.Graph()
    rows = graph.placeholder("rows")
    launch = graph.call_function(torch.ops.aten.relu.default, (rows,))
    for node in (rows, launch):
        meta.set_value(node, torch.empty(6, 2, device="meta"))
    return launch


def test_another_librarys_launch_is_what_the_user_says() -> None:
    launch, nothing = foreign_launch(), Sizes(StageGraph(fx.Graph(), (), ()))
    with pytest.raises(
        ap.CostError, match=r'relu_default: roofline does not know.*pass collectives=\{"aten::relu": \.\.\.\}'
    ):
        message(launch, Groups(8), nothing)
    with pytest.raises(ap.CostError, match="nor what 'scatter' is: .*with one of all_to_all, all_gather"):
        message(launch, Groups(8), nothing, {"aten::relu": cast(Any, "scatter")})
    found = message(launch, Groups(8), nothing, {"aten::relu": "all_to_all"})
    assert (found.kind, found.ranks, found.elements) == ("all_to_all", 8, 12)
