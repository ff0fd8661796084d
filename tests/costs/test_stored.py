"""What stages keep in memory: with balanced routing, and on a rank that gets more than its share."""

import functools

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.costs.stored import stored_bytes
from annopipe.graphs.process_groups import absent_group
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage

CONFIG = DeepSeekV3Config.tiny()
TOKENS, RANKS = 16, 4
ROWS = TOKENS * CONFIG.top_k  # that a rank receives if routing is balanced


@functools.cache
def stage() -> ap.StageGraphs:
    with absent_group(RANKS) as group:
        module = DeepSeekV3Stage(CONFIG, layers=[1], group=group, device="meta")
        return ap.trace(module, (torch.empty(1, TOKENS, CONFIG.hidden, device="meta", requires_grad=True),))


@functools.cache
def dense() -> ap.StageGraphs:
    return ap.trace(nn.Linear(8, 8), (torch.ones(4, 8, requires_grad=True),))


def test_what_depends_on_rows_grows_with_them_and_nothing_else() -> None:
    even, twice, thrice = (stored_bytes(stage(), skew=skew) for skew in (1.0, 2.0, 3.0))
    assert (twice.parameters, twice.output) == (even.parameters, even.output)
    for kept in ("activation", "kept_for_weight"):
        one, two, three = (getattr(stored, kept) for stored in (even, twice, thrice))
        assert one < two < 2 * one
        assert two - one == three - two
    kept_of_a_row = (twice.activation - even.activation) / ROWS
    assert kept_of_a_row >= 4 * (CONFIG.hidden + CONFIG.moe_intermediate), "what experts take, and their inner values"


def test_a_dense_stage_keeps_the_same() -> None:
    assert stored_bytes(dense(), skew=2.0) == stored_bytes(dense())


def test_actions_keep_rows_with_the_skew_that_they_are_given() -> None:
    def price(graph: ap.StageGraph) -> ap.NodeCosts:
        return ap.costs.roofline(graph, "h100", skew=2.0)

    costs = ap.costs.actions({0: dense(), 1: stage()}, price, skew=2.0)
    assert costs.activation == [stored_bytes(dense()).activation, stored_bytes(stage(), skew=2.0).activation]


def test_a_skew_below_even_is_refused() -> None:
    with pytest.raises(ap.CostError, match="give how many times its even share"):
        ap.costs.actions(stage(), lambda graph: ap.costs.roofline(graph, "h100"), skew=0.5)
