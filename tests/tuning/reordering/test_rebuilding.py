"""Orders that are built anew: a whole step within the memory, or none; nothing begins long before it is due."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.scheduling.action_costs import table
from annopipe.scheduling.library import schedule
from annopipe.tuning.families import families
from annopipe.tuning.layers import Layer
from annopipe.tuning.layout import Layout
from annopipe.tuning.partition import Family
from annopipe.tuning.reordering.problem import Problem
from annopipe.tuning.reordering.rebuilding import rebuilt
from annopipe.tuning.reordering.search import shortened
from annopipe.tuning.reordering.times import Times, times
from annopipe.tuning.trial import Rules, Trial
from annopipe.tuning.workload import Workload


def problem_of(name: str, memory: float | None = None) -> tuple[Problem, Times]:
    problem = Problem.of(schedule(name, ranks=4, microbatches=8), table(F=1.0, I=1.5, W=0.5, send=0.25), memory)
    found = times(problem, problem.start)
    assert found is not None
    return problem, found


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("gpipe", "1f1b", "zbv", "v-half", "dualpipe")),
    st.booleans(),
    st.sampled_from((0.0, 1.0, 4.0, 16.0)),
    st.sampled_from((-1.0, 0.0, 2.0, 8.0)),
    st.integers(0, 5),
)
def test_what_is_built_is_a_whole_step_within_the_memory(
    name: str, limited: bool, noise: float, slack: float, seed: int
) -> None:
    before = schedule(name, ranks=4, microbatches=8)
    costs = table(F=1.0, I=1.5, W=0.5, send=0.25)
    memory = max(before.simulated(costs).peaks) if limited else None
    problem, found = problem_of(name, memory)
    rng = random.Random(seed)
    anew = rebuilt(problem, [begin + noise * rng.random() for begin in found.begins], slack)
    if anew is None:
        assert limited
        return
    assert [sorted(order) for order in anew] == [sorted(order) for order in problem.start]
    problem.schedule(anew).check(memory=memory, costs=costs)
    assert times(problem, anew) is not None


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "v-half"])
def test_what_is_due_when_it_began_is_built_as_it_was(name: str) -> None:
    problem, found = problem_of(name)
    assert rebuilt(problem, found.begins, 0.0) == problem.start


def test_a_memory_that_forwards_fill_leaves_no_way() -> None:
    problem, found = problem_of("zbv", max(schedule("zbv", ranks=4, microbatches=8).simulated(table()).peaks))
    block = problem.numbering.block
    forwards_first = [0.0 if number < block else begin for number, begin in enumerate(found.begins)]
    assert rebuilt(problem, forwards_first, 1000.0) is None


def test_orders_that_shifting_cannot_leave_become_shorter() -> None:
    work = Workload((Layer(1.0, 1.0, 1.0, 1.0),) * 12, ranks=3, microbatches=4, memory=7.5)
    from_rules = Trial(*looped_twice(), Rules(("I", "F", "W"), in_flight=24))
    made, timeline = from_rules.simulated(work)
    found = shortened(Problem.of(made, from_rules.costs(work), work.memory), seed=0, effort=150_000)
    assert timeline.makespan == 58.0
    assert found.makespan <= 56.0  # 57 by shifting alone


def looped_twice() -> tuple[Family, Layout]:
    work = Workload((Layer(1.0, 1.0, 1.0, 1.0),) * 12, ranks=3, microbatches=4, memory=7.5)
    family = next(
        f
        for f in families(work, copies=2)
        if f.placement.name.startswith("two copies, looped") and f.placement.stages == 24
    )
    cut = tuple((layer, layer + 1) for layer in range(12)) * 2
    return family, Layout(family.placement, cut)
