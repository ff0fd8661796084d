import pytest
from hypothesis import given

from annopipe.errors import ScheduleError
from annopipe.simulation.ranks.engine import run
from tests.simulation.ranks.programs import Written, written
from tests.simulation.ranks.reference import longest_paths


@given(written())
def test_every_time_is_the_longest_path_to_it(subject):
    programs = subject.programs()
    starts, ends = run(programs)
    assert {n: (starts[n], ends[n]) for program in programs.ranks for n in program} == longest_paths(programs)


@given(written())
def test_parts_have_the_times_of_their_combination(subject):
    times = subject.times()
    for name, parts in subject.parts.items():
        assert {times[part] for part in parts.split()} <= {times[name]}


def test_a_rank_runs_its_actions_in_order_and_waits_for_inputs():
    subject = Written(["a b", "c d"], needs={"d": "b", "b": "c"}, seconds={"c": 3.0})
    assert subject.times() == {"a": (0.0, 1.0), "b": (3.0, 4.0), "c": (0.0, 3.0), "d": (4.0, 5.0)}


def test_a_message_never_blocks_its_rank_and_arrives_a_latency_after_its_end():
    subject = Written(["a x b", "c"], {"x": "a", "c": "x"}, {"x": 5.0}, links={"x": (0, 1)}, latency=0.5)
    assert subject.times() == {"a": (0.0, 1.0), "x": (1.0, 6.5), "b": (1.0, 2.0), "c": (6.5, 7.5)}


def test_a_link_carries_one_message_after_the_other_and_latency_does_not_occupy_it():
    links = {"x": (0, 1), "y": (0, 1)}
    subject = Written(["a x y", "c"], {"x": "a", "y": "a", "c": "y"}, {"x": 2.0, "y": 3.0}, links=links, latency=10.0)
    times = subject.times()
    assert (times["x"], times["y"]) == ((1.0, 13.0), (3.0, 16.0))


@pytest.mark.parametrize("other", [(0, 2), (1, 0)])
def test_links_to_other_ranks_and_in_the_other_direction_are_others(other):
    ranks = ["a x y", "b", ""] if other[0] == 0 else ["a x", "b y", ""]
    subject = Written(ranks, {"x": "a", "y": "a" if other[0] == 0 else "b"}, links={"x": (0, 1), "y": other})
    assert subject.times()["x"] == subject.times()["y"] == (1.0, 2.0)


def test_a_combination_waits_for_the_inputs_of_all_parts():
    subject = Written(
        ["ab", "c", "d"], needs={"p": "c", "q": "d c"}, parts={"ab": "p q"}, seconds={"d": 4.0, "ab": 2.5}
    )
    assert subject.times()["ab"] == subject.times()["p"] == (4.0, 6.5)


def test_all_who_wait_for_one_action_go_on_when_it_ends():
    waiting = [f"w{rank}" for rank in range(6)]
    subject = Written(["", *waiting, "a"][1:], needs=dict.fromkeys(waiting, "a"), seconds={"a": 2.0})
    assert {subject.times()[name] for name in waiting} == {(2.0, 3.0)}


def test_all_who_wait_for_a_part_go_on_when_the_combination_ends():
    subject = Written(
        ["b", "c", "d", "pq"], needs={"b": "p", "c": "p", "d": "q", "p": "", "q": ""}, parts={"pq": "p q"}
    )
    assert {subject.times()[name] for name in "bcd"} == {(1.0, 2.0)}


def test_an_action_may_wait_for_any_number_of_others():
    others = {f"o{index}": float(index) for index in range(5)}
    subject = Written([*others, "a"], needs={"a": " ".join(others)}, seconds=others)
    assert subject.times()["a"] == (4.0, 5.0)


def test_programs_that_cannot_finish_say_who_waits_for_what():
    subject = Written(["a b", "c d", "e"], needs={"a": "d", "c": "b", "e": "f", "f": ""})
    with pytest.raises(ScheduleError) as caught:
        subject.timeline()
    assert str(caught.value).splitlines() == [
        "schedule 'written' cannot finish; change the order so that one of these can go on:",
        "  rank 0, step 0: a waits for d, which rank 1 has not reached",
        "  rank 1, step 0: c waits for b, which rank 0 has not reached",
        "  rank 2, step 0: e waits for f, which no rank does",
    ]


def test_a_combination_that_needs_its_own_part_cannot_finish():
    subject = Written(["pq"], needs={"p": "", "q": "p"}, parts={"pq": "p q"})
    with pytest.raises(ScheduleError, match="rank 0, step 0: pq waits for p, which rank 0 has not reached"):
        subject.timeline()


def test_a_message_ahead_of_what_it_sends_cannot_finish():
    subject = Written(["x a", "c"], {"x": "a", "c": "x"}, links={"x": (0, 1)})
    with pytest.raises(ScheduleError, match="rank 0, step 0: x waits for a, which rank 0 has not reached"):
        subject.timeline()


def test_a_long_list_of_waiting_ranks_is_cut():
    names = [f"a{rank}" for rank in range(12)]
    subject = Written(names, needs={name: names[rank - 1] for rank, name in enumerate(names)})
    with pytest.raises(ScheduleError, match=r"rank 7, step 0: .*\n  and 4 more ranks"):
        subject.timeline()
