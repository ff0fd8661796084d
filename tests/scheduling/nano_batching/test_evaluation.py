"""The quick score of a choice is that of the schedule with its changes, simulated."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.scheduling.nano_batching.candidates import groups
from annopipe.scheduling.nano_batching.evaluation import Evaluator, changed
from annopipe.simulation.ranks.phases import PHASES
from tests.scheduling.random_schedules import EIGHTHS, costs_for, whole_schedules


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_score_is_what_simulating_the_changed_schedule_gives(data: st.DataObject) -> None:
    schedule = data.draw(whole_schedules())
    lanes = data.draw(st.dictionaries(st.sampled_from(["F/2", "B/2", "I/2", "F+B/2", "F+F", "I+W"]), EIGHTHS))
    costs = dataclasses.replace(data.draw(costs_for(schedule)), lanes=lanes)
    evaluator = Evaluator(schedule.programs, costs, schedule.operations, 2, None)
    every = [unit for group in groups(evaluator.ranks, PHASES, None) for unit in group.units]
    units = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    taken: set[tuple[int, int]] = set()
    choice = set()
    for unit in units:  # no action in two pairs
        steps = set() if isinstance(unit, tuple) else {(unit.rank, unit.first), (unit.rank, unit.second)}
        if steps.isdisjoint(taken):
            taken |= steps
            choice.add(unit)
    score = evaluator.score(frozenset(choice))
    rows = changed(evaluator.ranks, frozenset(choice), 2)
    slow = ap.Schedule.of(schedule.placement, schedule.microbatches, rows)
    try:
        slow.check()
        expected = ap.simulate(slow, costs)
    except ap.ScheduleError:
        assert score is None
        return
    assert score is not None
    assert (score.makespan, score.busy) == pytest.approx((expected.makespan, sum(expected.busy)))
