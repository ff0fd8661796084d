"""Steps: their timing is the simulation's, their orders are orders of the nodes."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.graphs.reordering import check_order
from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.coarsening import coarsened
from annopipe.ordering.problem import OverlapProblem, Value
from annopipe.ordering.search.step_bytes import with_bytes
from annopipe.ordering.search.steps import steps_of
from annopipe.simulation import Network
from tests.ordering.problems import random_problems


def unshared(problem: OverlapProblem) -> OverlapProblem:
    """The problem with a link for each queue, one transfer at a time: what steps time exactly."""
    return dataclasses.replace(problem, network=Network(1, False, problem.network.interference))


@settings(max_examples=80, deadline=None)
@given(random_problems(), st.lists(st.floats(0, 1), min_size=24, max_size=24))
def test_an_order_of_steps_takes_as_long_as_its_nodes_do_in_simulation(
    problem: OverlapProblem, rank: list[float]
) -> None:
    problem = unshared(problem)
    steps = steps_of(problem)
    order = steps.from_nodes(problem.topological(rank[: len(problem.nodes)]))
    nodes = steps.to_nodes(order)
    check_order(problem.nodes, nodes, problem.dependencies)
    assert nodes == waits_late(problem, nodes)
    assert steps.from_nodes(nodes) == order
    assert steps.timed(order) == pytest.approx(problem.makespan(nodes), abs=1e-9)


@st.composite
def problems_with_values(draw: st.DrawFn) -> OverlapProblem:
    problem = draw(random_problems())
    values = [
        Value(draw(st.integers(1, 9)), -1, tuple(draw(st.sets(st.integers(0, len(problem.nodes) - 1), min_size=1))))
    ]
    for node in problem.nodes:
        if node.kind != "wait":
            users = [user for user in problem.successors[node.index] if draw(st.booleans())]
            values.append(Value(draw(st.integers(1, 9)), node.index, tuple(users), draw(st.integers(0, 4)) == 0))
    return dataclasses.replace(problem, values=tuple(values))


@settings(max_examples=80, deadline=None)
@given(problems_with_values(), st.lists(st.floats(0, 1), min_size=24, max_size=24), st.sampled_from([0.0, 0.3]))
def test_steps_hold_no_less_than_their_nodes(problem: OverlapProblem, rank: list[float], share: float) -> None:
    coarse = coarsened(problem, share)
    steps = with_bytes(steps_of(coarse.problem), coarse, problem)
    order = steps.from_nodes(coarse.problem.topological(rank[: len(coarse.members)]))
    nodes = coarse.written_out(steps.to_nodes(order))
    assert steps.peak_bytes(order) >= problem.peak_bytes(nodes)
    if len(coarse.members) == len(nodes) and not any(node.kind == "wait" for node in problem.nodes):
        assert steps.peak_bytes(order) == problem.peak_bytes(nodes)


@settings(max_examples=60, deadline=None)
@given(problems_with_values())
def test_peak_bytes_are_those_of_a_count_value_by_value(problem: OverlapProblem) -> None:
    order = problem.topological([-float(node.index) for node in problem.nodes])
    place = {index: position for position, index in enumerate(order)}
    peak = 0
    for position in range(len(order)):
        live = 0
        for value in problem.values:
            made = place[value.made_by] if value.made_by >= 0 else 0
            last = max([made, *(place[user] for user in value.used_by)])
            live += value.size_bytes if made <= position and (value.kept or position <= last) else 0
        peak = max(peak, live)
    assert problem.peak_bytes(order) == peak
