"""A line through measured times is found, whatever happens to one of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.costs.fitting import Line, fitted

SIZES = [4**power for power in range(5, 13)]
LINES = st.builds(Line, st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))


@settings(deadline=None)
@given(LINES)
def test_times_on_a_line_give_that_line(line: Line) -> None:
    found = fitted({size: line.seconds(size) for size in SIZES})
    assert found.latency_s == pytest.approx(line.latency_s, rel=1e-3)
    assert [found.seconds(size) for size in SIZES] == pytest.approx([line.seconds(size) for size in SIZES], rel=1e-3)
    assert found.worst < 1e-3


@settings(deadline=None)
@given(LINES, st.integers(0, 5), st.floats(1.0, 20.0))
def test_one_time_that_was_disturbed_does_not_tilt_it(line: Line, index: int, by: float) -> None:
    times = {size: line.seconds(size) for size in SIZES}
    times[SIZES[index]] *= by
    found = fitted(times)
    assert [found.seconds(size) for size in SIZES] == pytest.approx([line.seconds(size) for size in SIZES], rel=0.1)
    assert found.worst == pytest.approx(1 - 1 / by, abs=0.05)


def test_a_latency_is_never_negative() -> None:
    assert fitted({1000: 1e-6, 2000: 1e-3, 4000: 3e-3}).latency_s == 0.0


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({}, "give 2 sizes or more"),
        ({8: 1.0}, "give 2 sizes or more"),
        ({8: 1.0, 16: 0.0}, "positive finite seconds"),
        ({8: 1.0, 16: float("inf")}, "positive finite seconds"),
        ({8: 2.0, 16: 1.0, 32: 0.5}, "a message of 32 bytes takes no longer than one of 8.*measure larger ones"),
    ],
)
def test_times_that_tell_no_line_are_refused(times: dict[int, float], message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        fitted(times)
