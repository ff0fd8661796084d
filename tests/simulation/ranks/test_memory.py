from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.ranks.programs import EIGHTHS, Written, written


def test_memory_is_steps_of_what_starts_and_ends_add():
    subject = Written(["a b c"], seconds={"b": 2.0}, keeps={"a": (4.0, -1.0), "c": (2.0, -5.0)}, parameters=[10.0])
    timeline = subject.timeline()
    assert timeline.memory == (((0.0, 14.0), (1.0, 13.0), (3.0, 15.0), (4.0, 10.0)),)
    assert (timeline.peaks, timeline.activations, timeline.peak_memory) == ((15.0,), (5.0,), 15.0)


def test_what_an_action_frees_is_free_for_the_next():
    timeline = Written(["a b"], keeps={"a": (4.0, -4.0), "b": (3.0, -3.0)}).timeline()
    assert timeline.activations == (4.0,)
    assert timeline.memory == (((0.0, 4.0), (1.0, 3.0), (2.0, 0.0)),)


def test_an_action_without_time_still_counts_for_the_peak():
    timeline = Written(["a b"], seconds={"b": 0.0}, keeps={"b": (3.0, -3.0)}).timeline()
    assert timeline.peaks == (3.0,)
    assert timeline.memory == (((0.0, 0.0), (1.0, 3.0), (1.0, 0.0)),)


def test_the_peak_is_of_the_rank_that_keeps_most():
    timeline = Written(["a", "b"], keeps={"a": (1.0, 0.0), "b": (2.0, 0.0)}, parameters=[5.0, 3.0]).timeline()
    assert (timeline.peaks, timeline.peak_memory) == ((6.0, 5.0), 6.0)


def test_parameters_alone_are_memory_too():
    timeline = Written(["a"], parameters=[3.0]).timeline()
    assert (timeline.memory, timeline.peak_memory) == ((((0.0, 3.0),),), 3.0)


@given(written(), st.data())
def test_the_largest_step_is_the_peak_and_steps_are_in_order(subject, data):
    messages = {name for name, (sender, receiver) in subject.links.items() if sender != receiver}
    names = {name for rank in subject.ranks for name in rank.split()} - messages
    changes = st.tuples(EIGHTHS, EIGHTHS.map(lambda n: -n))
    subject.keeps = {name: data.draw(changes) for name in sorted(names)}
    subject.parameters = [1.0] * len(subject.ranks)
    timeline = subject.timeline()
    for steps, peak in zip(timeline.memory, timeline.peaks, strict=True):
        assert max(amount for _, amount in steps) == peak
        assert [time for time, _ in steps] == sorted(time for time, _ in steps)
        assert all(before != after for before, after in pairwise(steps))


def test_what_runs_beside_the_computation_counts_when_it_ends():
    keeps = {"a": (4.0, 0.0), "x": (0.0, -3.0), "b": (2.0, 0.0), "c": (1.0, 0.0)}
    subject = Written(["a x b c"], {"x": "a"}, {"x": 1.5}, links={"x": (0, 0)}, keeps=keeps)
    timeline = subject.timeline()
    assert timeline.memory == (((0.0, 4.0), (1.0, 6.0), (2.0, 7.0), (2.5, 4.0)),)
    assert timeline.activations == (7.0,)
