"""Phases of a step: they add up to it, and their exposed communication to the timeline's."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.errors import ScheduleError
from annopipe.simulation.ranks.phases import PHASES, phase_numbers, phase_table, phases, steady_state
from tests.scheduling.random_schedules import costs_for, schedules

COSTS = ap.costs.table(FB=2.5, exposed={"F": 0.25, "B": 0.5, "FB": 0.125}, communication={"F": 0.75}, latency=0.5)


def kinds(text: str) -> range:
    return steady_state(text.split())


@pytest.mark.parametrize(
    ("row", "steady"),
    [
        ("F F FB FB B B", range(2, 4)),
        ("F F I FB W FI I W", range(3, 6)),
        ("F F B F B B", range(2, 4)),
        ("F F F B B B", range(3, 3)),
        ("F F", range(2)),
        ("FF WI FB", range(2, 3)),
        ("B W", range(0)),
        ("", range(0)),
    ],
)
def test_steady_state_is_between_pairs_or_else_from_the_first_backward_to_the_last_forward(row, steady) -> None:
    assert list(kinds(row)) == list(steady)
    assert kinds(row).start == steady.start or not kinds(row)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_phases_of_a_rank_add_up_to_the_step_and_their_exposed_parts_to_the_timelines(data: st.DataObject) -> None:
    schedule = data.draw(schedules())
    timeline = ap.simulate(schedule, data.draw(costs_for(schedule)))
    found = phases(timeline)
    for rank in range(timeline.ranks):
        own = [phase for phase in found if phase.rank == rank]
        assert [phase.name for phase in own] == list(PHASES)
        assert (own[0].start, own[-1].end) == (0.0, timeline.makespan)
        assert own[0].end == own[1].start
        assert own[1].end == own[2].start
        assert all(phase.seconds >= 0.0 and phase.communication >= phase.exposed >= 0.0 for phase in own)
        assert sum(phase.actions for phase in own) == len(timeline.spans[rank])
        assert math.fsum(phase.exposed for phase in own) == pytest.approx(timeline.exposed[rank])


def test_a_wait_belongs_to_the_phase_of_the_action_that_waits() -> None:
    timeline = ap.simulate(ap.schedule("gpipe", ranks=2, microbatches=2), COSTS)
    warm_up, steady, cool_down = (phase for phase in phases(timeline) if phase.rank == 0)
    assert (warm_up.end, steady.end, cool_down.end) == (2.0, 2.0, timeline.makespan)
    assert (warm_up.exposed, warm_up.hidden, warm_up.communication) == (0.5, 1.0, 1.5)
    assert cool_down.exposed == 2 * 0.5 + 0.5  # both backwards, and the wait for the first gradient


def test_communication_is_what_is_exposed_alone_unless_it_is_given() -> None:
    timeline = ap.simulate(ap.schedule("gpipe", ranks=1, microbatches=1), COSTS)
    assert [phase.communication for phase in phases(timeline)] == [0.75, 0.0, 0.5]


def test_timelines_side_by_side_say_what_share_is_no_longer_exposed() -> None:
    schedule = ap.schedule("gpipe", ranks=2, microbatches=1)
    better = ap.costs.table(exposed={"F": 0.1, "B": 0.2}, communication={"F": 0.25, "B": 0.5})
    timelines = {"before": ap.simulate(schedule, COSTS), "after": ap.simulate(schedule, better)}
    assert phase_table(timelines) == (
        "                    before                   after\n"
        "rank  phase           time  hidden  exposed   time  hidden  exposed\n"
        "0     warm-up          1 s  500 ms   250 ms    1 s  150 ms   100 ms\n"
        "      steady state     0 s     0 s      0 s    0 s     0 s      0 s\n"
        "      cool-down        6 s     0 s      1 s    5 s  300 ms   200 ms\n"
        "1     warm-up        2.5 s  500 ms   750 ms    2 s  150 ms   100 ms\n"
        "      steady state     0 s     0 s      0 s    0 s     0 s      0 s\n"
        "      cool-down      4.5 s     0 s   500 ms    4 s  300 ms   200 ms\n"
        "all   warm-up        3.5 s     1 s      1 s    3 s  300 ms   200 ms\n"
        "      steady state     0 s     0 s      0 s    0 s     0 s      0 s\n"
        "      cool-down     10.5 s     0 s    1.5 s    9 s  600 ms   400 ms\n"
        "after: 76% of the communication exposed in warm-up and cool-down is hidden"
    )
    found = phase_numbers(timelines)
    assert found["hidden_shares"] == {"after": pytest.approx(0.76)}
    assert found["makespans"] == {"before": 7.0, "after": 6.0}
    assert found["phases"]["after"][0]["hidden"] == pytest.approx(0.15)  # type: ignore[index]


def test_nothing_exposed_has_no_share() -> None:
    timeline = ap.simulate(ap.schedule("gpipe", ranks=1, microbatches=1))
    assert phase_numbers({"a": timeline, "b": timeline})["hidden_shares"] == {"b": None}
    assert "is hidden" not in phase_table({"a": timeline, "b": timeline})


def test_no_timeline_and_other_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(ScheduleError, match="no timelines: give a mapping"):
        phase_table({})
    both = {str(ranks): ap.simulate(ap.schedule("gpipe", ranks, 1)) for ranks in (1, 2)}
    with pytest.raises(ScheduleError, match="for one number of ranks, and 1 has 1, 2 has 2"):
        phase_numbers(both)
