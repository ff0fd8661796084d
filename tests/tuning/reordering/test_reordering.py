"""Moved actions: the same step in another order, within the memory, never longer; times are the simulation's."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import ActionCosts, table
from annopipe.scheduling.library import schedule
from annopipe.scheduling.schedule_class import Schedule
from annopipe.tuning.layers import Layer
from annopipe.tuning.layout import Layout
from annopipe.tuning.partition import Family, even
from annopipe.tuning.reordering.job import Reordering
from annopipe.tuning.reordering.joining import joined
from annopipe.tuning.reordering.problem import Problem
from annopipe.tuning.reordering.search import shortened
from annopipe.tuning.reordering.shifting import Plan, Shifter
from annopipe.tuning.reordering.times import times
from annopipe.tuning.trial import Rules, Trial, scored
from annopipe.tuning.workload import Workload

NAMES = ("gpipe", "1f1b", "zb-h1", "zbv", "v-half", "dualpipe", "interleaved-1f1b", "chimera")
TIMES = st.sampled_from((0.0, 0.5, 1.0, 1.7, 3.0))
SCHEDULES = st.builds(
    lambda name, half, more: schedule(name, ranks=4, microbatches=2 * half + 4 * more),
    st.sampled_from(NAMES),
    st.just(2),
    st.integers(0, 1),
)
COSTS = st.builds(
    lambda f, i, w, send, latency, kept: table(
        F=f + 0.5, I=i + 0.5, W=w, send=send, latency=latency, kept_for_weight=kept
    ),
    *[TIMES] * 5,
    st.sampled_from((0.0, 0.5, 1.0, 1.4)),
)


@settings(max_examples=40, deadline=None)
@given(SCHEDULES, COSTS)
def test_times_are_those_of_the_simulation(given_schedule: Schedule, costs: ActionCosts) -> None:
    problem = Problem.of(given_schedule, costs)
    found = times(problem, problem.start)
    split = problem.schedule(problem.start).simulated(costs)
    assert found is not None
    assert found.makespan == split.makespan
    assert all(found.begins[number] == split.starts[number] for order in problem.start for number in order)


@settings(max_examples=25, deadline=None)
@given(SCHEDULES, COSTS, st.booleans(), st.integers(0, 3))
def test_what_is_moved_is_a_whole_step_within_the_memory_and_no_longer(
    given_schedule: Schedule, costs: ActionCosts, limited: bool, seed: int
) -> None:
    before = given_schedule.simulated(costs)
    memory = max(before.peaks) if limited else None
    problem = Problem.of(given_schedule, costs, memory)
    found = shortened(problem, seed=seed, effort=4_000)
    moved = problem.schedule(joined(problem, found.orders, found.makespan))
    moved.check(memory=memory, costs=costs)
    assert moved.simulated(costs).makespan == pytest.approx(found.makespan)
    assert found.makespan <= before.makespan * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_backward_input_that_keeps_more_than_it_gives_back_has_room(seed: int) -> None:
    costs = table(F=0.5, I=1.5, W=1.0, send=1.0, latency=0.5, kept_for_weight=1.4)
    before = schedule("zbv", ranks=4, microbatches=8)
    memory = max(before.simulated(costs).peaks)
    problem = Problem.of(before, costs, memory)
    found = shortened(problem, seed=seed, effort=3_000)
    problem.schedule(joined(problem, found.orders, found.makespan)).check(memory=memory, costs=costs)


@settings(max_examples=25, deadline=None)
@given(SCHEDULES, COSTS, st.integers(0, 3))
def test_shifting_without_variation_never_makes_a_step_without_queues_longer(
    given_schedule: Schedule, costs: ActionCosts, seed: int
) -> None:
    costs = table(F=costs.F, I=costs.I, W=costs.W, latency=costs.latency)
    problem = Problem.of(given_schedule, costs, max(given_schedule.simulated(costs).peaks))
    found = times(problem, problem.start)
    assert found is not None
    plan, shifter = Plan([list(order) for order in problem.start], list(found.begins)), Shifter(problem)
    for _ in range(2):
        shifter.later(plan, found.makespan, random.Random(seed), 0.0)
        shifter.earlier(plan, random.Random(seed), 0.0)
        after = times(problem, plan.orders)
        assert after is not None
        assert after.makespan <= found.makespan * (1 + 1e-9)
        found, plan = after, Plan(plan.orders, list(after.begins))


def test_a_loss_over_the_whole_batch_waits_for_all_of_its_forwards() -> None:
    towers = placement.towers([0, 1], [1, 0], top=[0], batch_wide=True)
    work = Workload((Layer(1.0, 1.0, 1.0),), 2, 4, towers=((Layer(1.0, 1.0, 1.0),) * 2,) * 2)
    family = Family(towers, ((0, 1), (2, 3), (4,)))
    trial = Trial(family, Layout(towers, even(work, family)), Rules(("F", "I", "W"), "breadth-first"))
    moved, score = Reordering(trial, seed=0, effort=20_000).run(work)
    found, timeline = moved.simulated(work)
    found.check()
    assert score.makespan == timeline.makespan <= scored(work, trial).makespan


def test_a_seed_finds_the_same_and_more_effort_nothing_longer() -> None:
    problem = Problem.of(schedule("v-half", ranks=4, microbatches=8), table(F=0.5, I=0.5, W=0.5, activation=0.5), 4.0)
    efforts = [shortened(problem, seed=1, effort=effort) for effort in (1_000, 20_000, 20_000)]
    assert efforts[1] == efforts[2]
    assert efforts[0].makespan >= efforts[1].makespan


def test_a_step_that_cannot_be_beaten_is_left_alone() -> None:
    problem = Problem.of(schedule("1f1b", ranks=2, microbatches=3), table(F=1.0, I=1.0, W=1.0))
    makespan = times(problem, problem.start).makespan  # type: ignore[union-attr]
    assert shortened(problem, seed=0, effort=10_000, enough=makespan).orders == problem.start


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    stuck = Schedule.of(placement.linear(2), 2, [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])
    problem = Problem.of(stuck, table(F=1.0, I=1.0, W=1.0))
    assert times(problem, problem.start) is None
    with pytest.raises(ScheduleError, match="the ranks of the schedule wait for each other"):
        shortened(problem, seed=0, effort=10)


def test_moved_actions_help_where_memory_is_short() -> None:
    work = Workload((Layer(1.0, 1.0, 1.0, 1.0),) * 8, ranks=4, microbatches=6, memory=5.0)
    family = Family.of_chain(placement.v(4))
    trial = Trial(family, Layout(family.placement, even(work, family)), Rules(library="v-min"))
    moved, after = Reordering(trial, seed=0, effort=100_000).run(work)
    assert after.makespan < 0.97 * scored(work, trial).makespan
    assert after.memory <= 5.0
    assert moved.name == "v-min, actions moved"
