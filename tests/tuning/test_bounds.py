"""The bound: under everything that a search finds, and reached where that can be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.layers import Layer
from annopipe.tuning.tuner import tune
from annopipe.tuning.workload import Workload

times = st.integers(0, 5).map(float)
layer = st.builds(Layer, times.map(lambda time: time + 1.0), times, times, st.just(1.0), times)
works = st.builds(
    Workload,
    st.lists(layer, min_size=4, max_size=6).map(tuple),
    ranks=st.integers(1, 3),
    microbatches=st.integers(1, 5),
    message=st.sampled_from((0.0, 1.0)),
)


@settings(max_examples=10, deadline=None)
@given(works, st.integers(1, 2))
def test_no_schedule_is_shorter_than_the_bound(work: Workload, copies: int) -> None:
    for candidate in tune(work, copies=copies, effort=3_000, workers=1):
        assert candidate.timeline.makespan >= lower_bound(work, copies=copies) - 1e-9
        assert candidate.timeline.ranks == work.ranks


def test_one_rank_does_the_work_and_nothing_else() -> None:
    work = Workload((Layer(1.0, 2.0, 3.0),) * 2, ranks=1, microbatches=5)
    assert lower_bound(work) == 60.0
    assert tune(work, effort=1_000, workers=1)[0].timeline.makespan == 60.0


@pytest.mark.parametrize(("copies", "bound"), [(1, 9.0 * 6 + 3.0), (2, 9.0 * 3 + 3.0)])
def test_the_longest_layer_is_on_as_many_ranks_as_there_are_copies(copies: int, bound: float) -> None:
    work = Workload((*[Layer(0.5, 0.5, 0.5)] * 6, Layer(3.0, 3.0, 3.0)), ranks=7, microbatches=6)
    assert lower_bound(work, copies=copies) == bound
