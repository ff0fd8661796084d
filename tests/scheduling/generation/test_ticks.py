from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from annopipe.scheduling.generation.ticks import Ticks
from tests.scheduling.generation.specs import calm

TIMES = st.floats(0, 1e6) | st.integers(0, 1000).map(lambda n: n / 10) | st.sampled_from([0.0, 1e-300, 5e-324, 1e300])


@calm
@given(st.lists(TIMES, min_size=1, max_size=6))
def test_every_given_time_is_a_whole_number_and_comes_back(times):
    ticks = Ticks(times)
    assert all(type(ticks.of(time)) is int for time in times)
    assert [ticks.seconds(tick) for tick in ticks.all_of(times)] == times
    assert sorted(times) == [ticks.seconds(tick) for tick in sorted(map(ticks.of, times))]


@calm
@given(st.lists(TIMES, max_size=3), TIMES)
def test_another_time_is_exact(times, other):
    ticks = Ticks(times)
    assert ticks.seconds(ticks.of(other)) == other


def test_tenths_add_up_as_they_are_written():
    ticks = Ticks([0.1, 0.2, 0.3])
    assert ticks.of(0.1) + ticks.of(0.2) == ticks.of(0.3)
    assert Ticks([1.0]).of(0.25) == Fraction(1, 4)
