"""Times of collectives: hand-computed, never falling with size, and as the textbook orders them."""

import dataclasses
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import annopipe as ap
from annopipe.costs.collectives import Collective, NodeLimit, transfer
from tests.costs.toy import TOY

KINDS = get_args(Collective)
START, HOP, NETWORK_HOP = 2e-6, 1e-6, 1e-5
INSIDE, NETWORK = 1e10, 1e9
SIZE = 1e8


@pytest.mark.parametrize(
    ("kind", "ranks", "hops", "seconds"),
    [
        ("all_to_all", 4, 1, SIZE * 3 / 4 / INSIDE),
        ("all_gather", 4, 3, SIZE * 3 / 4 / INSIDE),
        ("reduce_scatter", 4, 3, SIZE * 3 / 4 / INSIDE),
        ("all_reduce", 4, 6, 2 * SIZE * 3 / 4 / INSIDE),
        ("broadcast", 4, 2, SIZE / INSIDE),
    ],
)
def test_inside_a_node_it_is_hops_and_bytes_over_bandwidth(
    kind: Collective, ranks: int, hops: int, seconds: float
) -> None:
    found = transfer(kind, SIZE, ranks, TOY)
    assert found.latency == pytest.approx(START + hops * HOP)
    assert found.seconds == pytest.approx(START + hops * HOP + seconds)


def test_an_all_to_all_between_nodes_waits_for_the_share_that_leaves_the_node() -> None:
    found = transfer("all_to_all", SIZE, 32, TOY)
    assert found.seconds == pytest.approx(START + NETWORK_HOP + SIZE * 24 / 32 / NETWORK)


def test_a_ring_between_nodes_uses_every_network_port_of_a_node() -> None:
    found = transfer("all_gather", SIZE, 16, TOY)
    assert found.seconds == pytest.approx(START + 15 * NETWORK_HOP + SIZE * 15 / 16 / (8 * NETWORK))
    apart = transfer("all_gather", SIZE, 16, TOY, nodes=16)
    assert apart.seconds == pytest.approx(START + 15 * NETWORK_HOP + SIZE * 15 / 16 / NETWORK)


def test_a_small_all_reduce_over_many_ranks_is_a_tree() -> None:
    assert transfer("all_reduce", 8, 64, TOY).latency == pytest.approx(START + 2 * 6 * NETWORK_HOP)


def test_a_group_of_one_copies_in_memory() -> None:
    for kind in KINDS:
        found = transfer(kind, SIZE, 1, TOY)
        assert found.seconds == pytest.approx(START + 2 * SIZE / 1e11)


def test_merging_rows_for_a_node_saves_network_and_costs_forwarding_inside() -> None:
    limit = NodeLimit(copies=8, nodes=4)
    assert transfer("all_to_all", SIZE, 32, TOY, limit=limit).seconds == pytest.approx(
        START + NETWORK_HOP + SIZE * (4 / 8) * (3 / 4) / NETWORK
    )
    slow_inside = dataclasses.replace(TOY, inside=dataclasses.replace(TOY.inside, bandwidth=1e8))
    assert transfer("all_to_all", SIZE, 32, slow_inside, limit=limit).seconds == pytest.approx(
        START + NETWORK_HOP + SIZE * (7 / 8) / 1e8
    )
    assert transfer("all_to_all", SIZE, 8, TOY, limit=limit) == transfer("all_to_all", SIZE, 8, TOY)


@given(
    st.sampled_from(KINDS), st.floats(0, 1e12), st.floats(0, 1e12), st.integers(1, 300), st.integers(1, 16), st.data()
)
def test_times_are_positive_and_never_fall_with_size(
    kind: Collective, size: float, more: float, ranks: int, per_node: int, data: st.DataObject
) -> None:
    machine = dataclasses.replace(TOY, ranks_per_node=per_node)
    limit = data.draw(st.none() | st.builds(NodeLimit, copies=st.just(8), nodes=st.integers(1, 8)))
    small = transfer(kind, size, ranks, machine, limit=limit)
    large = transfer(kind, size + more, ranks, machine, limit=limit)
    assert 0 < small.latency <= small.seconds <= large.seconds


@given(st.floats(1, 1e12), st.integers(2, 300))
def test_an_all_reduce_takes_at_most_a_reduce_scatter_and_an_all_gather(size: float, ranks: int) -> None:
    halves = transfer("reduce_scatter", size, ranks, TOY).seconds + transfer("all_gather", size, ranks, TOY).seconds
    assert transfer("all_reduce", size, ranks, TOY).seconds <= halves * (1 + 1e-9)


@pytest.mark.parametrize("nodes", [0, 5])
def test_a_group_lies_on_at_least_one_and_at_most_as_many_nodes_as_ranks(nodes: int) -> None:
    with pytest.raises(ap.CostError, match=f"4 ranks cannot lie on {nodes} nodes"):
        transfer("all_reduce", SIZE, 4, TOY, nodes=nodes)
