"""Cuts: all layers once and in order, balanced ones never busier than even ones."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.scheduling import placement
from annopipe.tuning.families import families, in_two_copies
from annopipe.tuning.layers import Layer
from annopipe.tuning.layout import Bounds, Layout
from annopipe.tuning.partition import Family, balanced, even, moved
from annopipe.tuning.workload import Workload

times = st.integers(1, 6).map(float)
chains = st.lists(st.builds(Layer, times, times, times), min_size=4, max_size=12).map(tuple)


def covers(work: Workload, family: Family, bounds: Bounds) -> bool:
    """Whether the stages of one copy have all layers, each chain in the order of its stages."""
    groups = [[bounds[stage] for stage in group] for group in family.groups]
    flat = [layer for group in groups for start, end in group for layer in range(start, end)]
    return flat == [*range(len(work.all_layers))] and all(start < end for start, end in bounds)


@settings(deadline=None, max_examples=40)
@given(chains, st.integers(1, 4), st.integers(1, 2))
def test_every_layer_is_in_one_stage_of_each_copy(layers: tuple[Layer, ...], ranks: int, copies: int) -> None:
    work = Workload(layers, ranks=ranks, microbatches=2)
    for family in families(work, copies=copies):
        assert family.placement.copies <= copies
        for bounds in (
            even(work, family),
            balanced(work, family),
            *itertools.islice(moved(family, even(work, family)), 6),
        ):
            assert covers(work, family, bounds)
            assert all(bounds[stage] == bounds[first] for stage, first in enumerate(family.placement.weights_of))


@settings(deadline=None, max_examples=40)
@given(chains, chains, st.integers(1, 3))
def test_every_layer_of_towers_is_in_one_stage(first: tuple[Layer, ...], second: tuple[Layer, ...], ranks: int) -> None:
    work = Workload(first[:2], ranks=ranks, microbatches=2, towers=(first, second))
    found = families(work)
    assert found
    for family in found[:8]:
        assert family.placement.batch_wide
        assert covers(work, family, even(work, family))
        assert covers(work, family, balanced(work, family))


@settings(deadline=None, max_examples=40)
@given(chains, st.integers(2, 4))
def test_balanced_stages_are_never_busier_than_even_ones(layers: tuple[Layer, ...], ranks: int) -> None:
    work = Workload(layers, ranks=ranks, microbatches=2)
    family = Family.of_chain(placement.linear(ranks))
    busiest = [max(Layout(family.placement, cut).loads(work)) for cut in (balanced(work, family), even(work, family))]
    assert busiest[0] <= busiest[1]


def test_where_moving_one_cut_helps_nothing_even_stages_are_the_start() -> None:
    weights = (2.0, 1.0, 1.0, 2.0, 3.0, 1.0)
    work = Workload(tuple(Layer(1.0, 1.0, weight) for weight in weights), ranks=4, microbatches=2)
    family = Family.of_chain(placement.linear(4))
    assert max(Layout(family.placement, balanced(work, family)).loads(work)) == 7.0


def test_a_large_head_gets_a_rank_of_its_own() -> None:
    work = Workload((*[Layer(1.0, 1.0, 1.0)] * 6, Layer(4.0, 4.0, 4.0)), ranks=3, microbatches=4)
    assert balanced(work, Family.of_chain(placement.linear(3))) == ((0, 3), (3, 6), (6, 7))


def test_fast_ranks_get_more_layers() -> None:
    work = Workload((Layer(1.0, 1.0, 1.0),) * 9, ranks=2, microbatches=4, speed=(1.0, 0.5))
    assert balanced(work, Family.of_chain(placement.linear(2))) == ((0, 6), (6, 9))


def test_two_copies_share_each_stage_between_two_ranks() -> None:
    work = Workload((*[Layer(1.0, 1.0, 1.0)] * 3, Layer(5.0, 5.0, 5.0)), ranks=2, microbatches=4)
    family = Family.of_chain(in_two_copies(placement.linear(2), [1, 0]))
    assert Layout(family.placement, even(work, family)).loads(work) == [12.0, 12.0]
