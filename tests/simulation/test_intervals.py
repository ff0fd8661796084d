import itertools

from hypothesis import given
from hypothesis import strategies as st

from annopipe.simulation.intervals import length, merge

INTERVALS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: tuple(map(float, sorted(pair))))
)


@given(INTERVALS)
def test_merged_intervals_cover_the_same_points_once(intervals):
    merged = merge(intervals)
    covered = [middle + 0.5 for middle in range(12) if any(a < middle + 0.5 < b for a, b in intervals)]
    assert [m + 0.5 for m in range(12) for a, b in merged if a < m + 0.5 < b] == covered
    assert length(merged) == len(covered)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
