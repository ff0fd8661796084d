"""Sizes that depend on data have the value that balanced routing gives them, in every graph of a trace."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.balanced_sizes import balanced, evaluated, symbols
from annopipe.graphs.stage_graph import input_nodes
from annopipe.models import DeepSeekV3Config, MoE, PlainMoE

TOKENS, TOP_K = 6, 2


@pytest.fixture(name="group")
def _group():
    dist.init_process_group("fake", rank=0, world_size=4, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def sizes(graph: ap.StageGraph) -> dict[str, int | None]:
    """Every data-dependent extent of a graph's values, by its text."""
    found = {}
    for node in graph.graph.nodes:
        value = meta.value(node)
        for extent in value.shape if isinstance(value, torch.Tensor) else ():
            if symbols(extent):
                found[str(extent)] = balanced(extent)
    return found


@pytest.mark.parametrize("moe", [MoE, PlainMoE])
def test_an_exchange_receives_what_it_sends(group, moe: type[MoE]) -> None:
    config = DeepSeekV3Config.tiny()
    graphs = ap.trace(moe(config, group), (torch.zeros(1, TOKENS, config.hidden, requires_grad=True),))
    assert graphs.backward is not None
    assert graphs.backward_weight is not None
    for graph in (graphs.forward, graphs.backward, graphs.backward_weight):
        found = sizes(graph)
        assert found
        assert None not in found.values()
        assert max(value or 0 for value in found.values()) == TOKENS * TOP_K


def test_rows_are_spread_evenly_and_the_first_get_more(group) -> None:
    config = DeepSeekV3Config.tiny()
    graphs = ap.trace(PlainMoE(config, group), (torch.zeros(1, 5, config.hidden, requires_grad=True),))
    (launch,) = [n for n in graphs.forward.graph.nodes if "all_to_all" in n.name and meta.value(n).dim() == 2][:1]
    sent = [meta.value(size) for size in launch.args[2]]
    assert [balanced(size) for size in sent] == [3, 3, 2, 2]


class Count(nn.Module):
    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x, minlength=self.bins) + 1


@pytest.mark.parametrize(("bins", "size"), [(4, 4), (1, 1), (0, None)])
def test_counts_have_a_place_for_each_expert(bins: int, size: int | None) -> None:
    graphs = ap.trace(Count(bins), (torch.zeros(3, dtype=torch.int64),))
    assert set(sizes(graphs.forward).values()) == {size}


def test_a_size_that_no_rule_covers_has_no_value() -> None:
    class Nonzero(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero() + 1

    graphs = ap.trace(Nonzero(), (torch.ones(3),))
    assert set(sizes(graphs.forward).values()) == {None}
    assert len(input_nodes(graphs.forward.graph)) == 1


def test_numbers_are_their_own_value() -> None:
    assert evaluated(3, lambda _: None) == 3
    assert symbols(3) == set()
