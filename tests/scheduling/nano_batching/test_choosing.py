"""Choosing nano-batches: never slower, always a whole step, the same every time, and left alone if they do not pay."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.scheduling.actions import COMPUTE, Action
from annopipe.scheduling.lanes import whole
from annopipe.scheduling.nano_batching.record import NanoBatching
from tests.scheduling.random_schedules import EIGHTHS, costs_for, whole_schedules

LANES = ("F/2", "B/2", "I/2", "W/2", "F+F", "B+B", "I+I", "F+W", "I+W", "B+W", "F+B/2", "F/2+B", "F/2+B/2", "F/2+W")
# A forward's and a backward-input's communication is 0.4 of their time; two lanes hide three quarters of it.
PAYS = ap.costs.table(
    FB=2.1,
    exposed={"F": 0.4, "I": 0.4, "FB": 0.1},
    lanes={"F/2": 0.7, "I/2": 0.7, "B/2": 1.7, "F+B/2": 2.1, "F/2+B": 2.1, "F/2+B/2": 2.1},
)
# Latency dominates: twice as many messages take longer than what they hide.
TINY = dataclasses.replace(PAYS, lanes={"F/2": 1.1, "I/2": 1.1, "B/2": 2.1, "F+B/2": 2.3, "F/2+B": 2.3, "F/2+B/2": 2.4})


def record(schedule: ap.Schedule) -> NanoBatching:
    assert schedule.nano_batching is not None
    return schedule.nano_batching


def singles(schedule: ap.Schedule) -> list[Action]:
    return [part for row in schedule.ranks for action in row for part in action.singles]


def plain(actions: Sequence[Action]) -> list[str]:
    return sorted(str(whole(action)) for action in actions)


@st.composite
def lanes(draw: st.DrawFn, costs: ap.ActionCosts) -> ap.ActionCosts:
    found = draw(st.dictionaries(st.sampled_from(LANES), EIGHTHS, max_size=8))
    return dataclasses.replace(costs, lanes=found)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_result_is_a_whole_step_that_is_never_slower(data: st.DataObject) -> None:
    schedule = data.draw(whole_schedules())
    costs = data.draw(lanes(data.draw(costs_for(schedule))))
    chosen = ap.with_nano_batches(schedule, costs)
    before, after = ap.simulate(schedule, costs).makespan, ap.simulate(chosen, costs).makespan
    assert after <= before
    assert (record(chosen).before_s, record(chosen).after_s) == pytest.approx((before, after))
    chosen.check()
    chosen.lowered().check(rendezvous=True)
    assert plain(singles(chosen)) == plain(singles(schedule))
    if after == before:
        assert chosen == schedule


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_all_actions_of_a_microbatch_on_a_stage_have_as_many_nano_batches(data: st.DataObject) -> None:
    schedule = data.draw(whole_schedules())
    chosen = ap.with_nano_batches(schedule, data.draw(lanes(data.draw(costs_for(schedule)))), parts=3)
    counts: dict[tuple[int, int | None], set[int]] = {}
    for action in singles(chosen):
        counts.setdefault((action.stage, action.microbatch), set()).add(action.nano_batches)
    assert all(own in ({1}, {3}) for own in counts.values())


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_same_schedule_and_costs_give_the_same_choice_and_it_goes_through_a_file(data: st.DataObject) -> None:
    schedule = data.draw(whole_schedules())
    costs = data.draw(lanes(data.draw(costs_for(schedule))))
    once, again = ap.with_nano_batches(schedule, costs), ap.with_nano_batches(schedule, costs)
    assert (once, record(once)) == (again, record(again))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chosen.csv")
        once.to_csv(path)
        assert ap.Schedule.from_csv(path, once.placement, microbatches=once.microbatches) == once


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_limit_of_memory_is_kept(data: st.DataObject) -> None:
    schedule = data.draw(whole_schedules())
    costs = data.draw(lanes(data.draw(costs_for(schedule))))
    limit = max(ap.simulate(schedule, costs).activations)
    try:
        schedule.check(memory=limit, costs=costs)
    except ap.ScheduleError:
        return  # operations beside computation: the check counts in order
    ap.with_nano_batches(schedule, costs, memory=limit).check(memory=limit, costs=costs)


@pytest.mark.parametrize("name", [n for n in ap.schedules() if n not in ("naive", "distmm-pipe")])
def test_every_schedule_with_a_name_gets_shorter_where_nano_batches_pay(name: str) -> None:
    schedule = ap.schedule(name, ranks=2, microbatches=4)
    chosen = ap.with_nano_batches(schedule, PAYS)
    before, after = ap.simulate(schedule, PAYS), ap.simulate(chosen, PAYS)
    assert after.makespan < before.makespan
    assert after.exposed_comm < before.exposed_comm
    chosen.lowered(parameters=True).check(rendezvous=True)


def test_in_steady_state_the_partner_of_a_nano_batched_forward_is_a_third_lane() -> None:
    chosen = ap.with_nano_batches(ap.schedule("dualpipev", ranks=4, microbatches=20), PAYS)
    texts = [str(action) for action in chosen.ranks[0]]
    assert texts[:3] == ["0F0/2", "0F1/2", "0F2/2"]
    assert any("F" in text and "B0/2)" in text for text in texts)
    plain_pairs = [action for row in chosen.ranks for action in row if action.parts and "/" not in str(action)]
    assert plain_pairs, "microbatches that have a partner all the time stay whole"


def test_a_case_with_tiny_messages_is_left_alone_and_says_why() -> None:
    schedule = ap.schedule("dualpipev", ranks=4, microbatches=8)
    chosen = ap.with_nano_batches(schedule, TINY)
    assert chosen == schedule
    assert chosen.name == "dualpipev"
    assert record(chosen).reason == (
        "left alone: nothing that was tried makes the step shorter than 45 s; the best of one group, nano-batches of "
        "stage 7 in the warm-up of rank 0, makes it no shorter: 7F0 takes 1 s (400 ms exposed), 7F0/2 1.1 s (500 ms "
        "exposed)"
    )
    assert not any(trial.chosen for trial in record(chosen).trials)


def test_costs_that_say_nothing_of_lanes_are_named() -> None:
    reason = record(ap.with_nano_batches(ap.schedule("gpipe", 2, 2), ap.costs.table())).reason
    assert reason.endswith("the costs do not say what lanes take: give lanes=, or costs of graphs (ap.costs.actions)")


def test_two_microbatches_run_together_where_that_is_faster_than_halves() -> None:
    costs = dataclasses.replace(TINY, lanes={**TINY.lanes, "F+F": 1.4, "B+B": 3.0})
    chosen = ap.with_nano_batches(ap.schedule("gpipe", ranks=1, microbatches=4), costs)
    assert [str(action) for action in chosen.ranks[0]] == [
        *("(0F0;0F1)OVERLAP", "(0F2;0F3)OVERLAP"),
        *("(0B0;0B1)OVERLAP", "(0B2;0B3)OVERLAP"),
    ]


def test_two_that_would_make_the_next_rank_start_late_stay_apart() -> None:
    costs = dataclasses.replace(TINY, lanes={"F+F": 1.9})
    assert not record(ap.with_nano_batches(ap.schedule("1f1b", ranks=4, microbatches=4), costs)).reason.startswith("2")


def test_a_weight_gradient_is_a_partner() -> None:
    costs = dataclasses.replace(TINY, lanes={"I+W": 1.2})
    schedule = ap.Schedule.of(ap.placement.linear(1), 2, [["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]])
    assert [str(action) for action in ap.with_nano_batches(schedule, costs).ranks[0]][3:] == ["(0W0;0I1)OVERLAP", "0W1"]


def test_graphs_that_cannot_be_lanes_of_one_stay_apart_and_the_table_says_so() -> None:
    def refused(action: Action) -> float | None:
        if action.stage == 0 and action.nano_batches > 1:
            raise ap.GraphError("both update buffer mean")
        return None

    costs = dataclasses.replace(PAYS, overlap=refused)
    chosen = ap.with_nano_batches(ap.schedule("1f1b", 2, 2), costs)
    assert {action.stage for action in singles(chosen) if action.nano_batches > 1} == {1}
    first = record(chosen).trials[0]
    assert (first.stage, first.alone_s) == (0, None)
    assert first.example.endswith("0F0/2 cannot run (both update buffer mean)")


def test_only_the_stages_that_may_change_do() -> None:
    chosen = ap.with_nano_batches(ap.schedule("1f1b", ranks=2, microbatches=4), PAYS, stages=[1])
    assert {action.stage for action in singles(chosen) if action.nano_batches > 1} == {1}


def test_what_is_in_nano_batches_already_stays() -> None:
    rows = [["0F0/4", "0F1", "0B0/4", "0B1"]]
    chosen = ap.with_nano_batches(ap.Schedule.of(ap.placement.linear(1), 2, rows), PAYS)
    assert [str(action) for action in chosen.ranks[0]] == ["0F0/4", "0F1/2", "0B0/4", "0B1/2"]


def test_a_table_says_what_was_tried_and_what_each_change_won_or_lost() -> None:
    lanes = {**PAYS.lanes, "F+F": 1.5}
    chosen = ap.with_nano_batches(ap.schedule("1f1b", 2, 4), dataclasses.replace(PAYS, lanes=lanes))
    assert f"{chosen.nano_batching}\n" == Path(__file__).with_name("tried.txt").read_text(encoding="utf-8")


def test_without_a_backward_forwards_are_steady_and_may_be_split() -> None:
    chosen = ap.with_nano_batches(ap.schedule("forward-only", 2, 2), PAYS)
    assert all(action.nano_batches == 2 for action in singles(chosen))
    assert {trial.phase for trial in record(chosen).trials} == {"steady state"}


def test_kinds_that_have_no_partner_are_those_that_somebody_waits_for() -> None:
    trials = record(ap.with_nano_batches(ap.schedule("zb-h1", 2, 4), PAYS)).trials
    assert all(any(kind in trial.example for kind in COMPUTE) for trial in trials)
    assert {trial.change for trial in trials} == {"nano-batches", "two together", "with a W"}


@pytest.mark.slow
def test_a_step_of_8_ranks_and_32_microbatches_takes_a_bounded_number_of_simulations() -> None:
    chosen = ap.with_nano_batches(ap.schedule("dualpipev", ranks=8, microbatches=32), PAYS)
    assert record(chosen).after_s < record(chosen).before_s


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("1f1b", PAYS), ap.ScheduleError, "schedule is '1f1b'; make one with annopipe.schedule"),
        ((ap.schedule("1f1b", 2, 2), 1.0), ap.CostError, r"costs is 1.0; make them with annopipe.costs.table or"),
        ((ap.schedule("1f1b", 2, 2), PAYS, 1), ap.ScheduleError, "parts=1: give into how many nano-batches"),
        ((ap.schedule("1f1b", 2, 2).lowered(), PAYS), ap.ScheduleError, "the schedule has messages: choose"),
        ((ap.schedule("1f1b", 2, 2), ap.costs.table(F=[1.0])), ap.CostError, "F has 1 entries"),
    ],
)
def test_what_cannot_be_split_is_refused(arguments: tuple, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ap.with_nano_batches(*arguments)


def test_stages_that_are_not_there_and_memory_that_is_not_enough_are_refused() -> None:
    schedule = ap.schedule("1f1b", 2, 2)
    with pytest.raises(ap.ScheduleError, match="stages names 5: there are stages 0 to 1"):
        ap.with_nano_batches(schedule, PAYS, stages=[5])
    with pytest.raises(ap.ScheduleError, match=r"stages=1: give the stages that may change, such as \[1\]"):
        ap.with_nano_batches(schedule, PAYS, stages=1)  # type: ignore[arg-type]
    with pytest.raises(ap.ScheduleError, match="brings the activations kept to 2, and the limit is 1"):
        ap.with_nano_batches(schedule, PAYS, memory=1)
