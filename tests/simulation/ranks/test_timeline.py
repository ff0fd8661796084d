import json
import math
from itertools import pairwise, zip_longest

import pytest
from hypothesis import given

from annopipe.simulation import Message, RankSpan, ScheduleTimeline, Timeline
from tests.simulation.ranks.programs import Written, written
from tests.simulation.ranks.reference import longest_paths

TWO_RANKS = Written(
    ["a x b", "c d"], {"x": "a", "c": "x"}, {"a": 2.0, "d": 0.5, "x": 1.0}, links={"x": (0, 1)}, latency=0.25
)


def ends_on_path(timeline: ScheduleTimeline) -> list[tuple[float, float]]:
    """Start and end of the entries: a message ahead of another one on the path ends when it is sent."""
    path = timeline.critical_path
    found = []
    for entry, after in zip_longest(path, path[1:]):
        if isinstance(entry, RankSpan):
            found.append((entry.start, entry.end))
        else:
            found.append((entry.start, entry.sent if isinstance(after, Message) else entry.arrival))
    return found


def test_numbers_of_two_ranks():
    timeline = TWO_RANKS.timeline()
    assert timeline.makespan == 4.75
    assert timeline.window == 3.0
    assert timeline.busy == (3.0, 1.5)
    assert timeline.bubbles == (1 - 3.0 / 4.75, 1 - 1.5 / 4.75)
    assert timeline.bubble == pytest.approx(1 - 4.5 / 9.5)
    assert timeline.idle == 3.25
    assert (timeline.message_count, timeline.comm_time, timeline.exposed_comm) == (1, 1.0, 1.25)
    assert (timeline.name, timeline.ranks) == ("written", 2)


def test_spans_and_messages_have_their_times():
    timeline = TWO_RANKS.timeline()
    assert [[(s.rank, s.text, s.start, s.end) for s in spans] for spans in timeline.spans] == [
        [(0, "a", 0.0, 2.0), (0, "b", 2.0, 3.0)],
        [(1, "c", 3.25, 4.25), (1, "d", 4.25, 4.75)],
    ]
    assert timeline.messages == (Message("x", 0, 1, 2.0, 3.0, 3.25),)


def test_a_combination_is_one_span_with_its_parts():
    (spans,) = Written(["ab"], parts={"ab": "p q"}).timeline().spans
    assert [(span.text, span.parts) for span in spans] == [("ab", ("p", "q"))]


def test_nothing_at_all_takes_no_time():
    timeline = Written(["", ""]).timeline()
    assert (timeline.makespan, timeline.window, timeline.bubble, timeline.exposed_comm) == (0.0, 0.0, 0.0, 0.0)
    assert (timeline.critical_path, timeline.peak_memory, timeline.memory) == ((), 0.0, (((0.0, 0.0),),) * 2)


def test_it_is_a_timeline_and_says_what_it_is():
    assert isinstance(TWO_RANKS.timeline(), Timeline)
    assert repr(TWO_RANKS.timeline()) == "ScheduleTimeline(written, 2 ranks, makespan 4.75 s)"


def test_plain_data_is_json_and_the_same_each_time():
    text = TWO_RANKS.timeline().to_json()
    assert text == TWO_RANKS.timeline().to_json()
    found = json.loads(text)
    assert (found["makespan"], found["critical_path"]) == (4.75, ["a", "x", "c", "d"])
    assert found["messages"][0]["arrival"] == 3.25
    assert [span["text"] for span in found["spans"][1]] == ["c", "d"]


@given(written())
def test_makespan_and_idle_times_agree_with_the_longest_path(subject):
    timeline = subject.timeline()
    reference = longest_paths(timeline.programs)
    own = [[reference[n] for n in numbers] for numbers in timeline.computations]
    both = [times + [reference[n] for n in beside] for times, beside in zip(own, timeline.operations, strict=True)]
    assert timeline.makespan == max((end for times in both for _, end in times), default=0)
    timed = [[(start, end) for start, end in times if end > start] for times in both]
    windows = [max(end for _, end in times) - min(start for start, _ in times) for times in timed if times]
    assert timeline.window == max(windows, default=0)
    busy = [sum(end - start for start, end in times) for times in own]
    assert list(timeline.busy) == busy
    assert timeline.idle == timeline.makespan - min(busy)
    assert 0.0 <= timeline.bubble <= 1.0
    assert math.isclose(
        timeline.bubble * timeline.ranks * timeline.makespan, timeline.ranks * timeline.makespan - sum(busy)
    )


@given(written())
def test_the_critical_path_goes_from_start_to_end_without_a_gap(subject):
    timeline = subject.timeline()
    times = ends_on_path(timeline)
    assert not times or times[0][0] == 0.0
    assert all(end == start for (_, end), (start, _) in pairwise(times))
    assert sum(end - start for start, end in times) == timeline.makespan


def test_the_critical_path_names_messages_and_waits_for_links():
    links = {"x": (0, 1), "y": (0, 1)}
    subject = Written(["a x y", "c"], {"x": "a", "y": "a", "c": "y"}, {"x": 2.0, "y": 3.0}, links=links, latency=0.5)
    timeline = subject.timeline()
    assert [entry.text for entry in timeline.critical_path] == ["a", "x", "y", "c"]
    assert ends_on_path(timeline) == [(0.0, 1.0), (1.0, 3.0), (3.0, 6.5), (6.5, 7.5)]


def test_a_message_without_time_is_not_on_the_critical_path():
    subject = Written(["a x", "c"], {"x": "a", "c": "x"}, {"x": 0.0}, links={"x": (0, 1)})
    assert [entry.text for entry in subject.timeline().critical_path] == ["a", "c"]


def test_only_waiting_for_a_message_that_is_under_way_is_exposed():
    # rank 1 idles from 0 to 1 for what is not sent yet, and from 1 to 3.5 for the message
    subject = Written(["a x", "c"], {"x": "a", "c": "x"}, {"x": 2.0}, links={"x": (0, 1)}, latency=0.5)
    assert subject.timeline().exposed == (0.0, 2.5)


def test_a_message_that_moves_while_its_receiver_computes_is_hidden():
    subject = Written(["a x", "b c"], {"x": "a", "c": "x"}, {"x": 2.0, "b": 2.5}, links={"x": (0, 1)})
    assert subject.timeline().exposed == (0.0, 0.5)


def test_waiting_in_line_for_a_link_is_exposed_too():
    links = {"x": (0, 1), "y": (0, 1)}
    subject = Written(["a x y", "c"], {"x": "a", "y": "a", "c": "y"}, {"x": 2.0, "y": 3.0}, links=links)
    assert subject.timeline().exposed == (0.0, 5.0)


def test_two_messages_at_the_same_time_are_exposed_once():
    links = {"x": (0, 2), "y": (1, 2)}
    subject = Written(["a x", "b y", "c"], {"x": "a", "y": "b", "c": "x y"}, {"x": 2.0, "y": 3.0}, links=links)
    assert subject.timeline().exposed == (0.0, 0.0, 3.0)


def test_exposed_communication_inside_actions_is_added():
    subject = Written(["a x b", "c"], {"x": "a", "c": "x"}, {"x": 2.0}, links={"x": (0, 1)}, exposed={"b": 0.5})
    assert subject.timeline().exposed == (0.5, 2.0)
    assert subject.timeline().exposed_comm == 2.5


@given(written())
def test_exposed_communication_is_within_idle_time(subject):
    timeline = subject.timeline()
    for exposed, busy in zip(timeline.exposed, timeline.busy, strict=True):
        assert 0.0 <= exposed <= timeline.makespan - busy
    if not timeline.messages:
        assert timeline.exposed_comm == 0.0


def test_an_operation_on_a_resource_runs_beside_the_computation():
    subject = Written(
        ["a x y b c"], {"x": "a", "y": "a", "c": "x"}, {"x": 3.0, "y": 4.0}, links={"x": (0, 0), "y": (0, 0)}
    )
    timeline = subject.timeline()
    assert [(span.text, span.start, span.end) for span in timeline.spans[0]] == [
        ("a", 0.0, 1.0),
        ("b", 1.0, 2.0),
        ("c", 4.0, 5.0),
    ]
    assert [(span.text, span.start, span.end) for span in timeline.beside[0]] == [("x", 1.0, 4.0), ("y", 4.0, 8.0)]
    assert (timeline.makespan, timeline.window, timeline.busy) == (8.0, 8.0, (3.0,))
    assert [entry.text for entry in timeline.critical_path] == ["a", "x", "y"]


def test_a_resource_carries_no_messages():
    timeline = Written(["a x b"], {"x": "a", "b": "x"}, {"x": 3.0}, links={"x": (0, 0)}).timeline()
    assert (timeline.messages, timeline.message_count, timeline.comm_time, timeline.exposed_comm) == ((), 0, 0.0, 0.0)
