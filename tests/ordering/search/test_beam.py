"""Beams: exact where nothing is cut, legal everywhere, within a limit on memory."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings

from annopipe.graphs.reordering import check_order
from annopipe.ordering.coarsening import coarsened
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.search.beam import Beam, Choices
from annopipe.ordering.search.exploring import explored, leanest
from annopipe.ordering.search.step_bytes import with_bytes
from annopipe.ordering.search.steps import steps_of
from annopipe.simulation import Network
from benchmarks.search.problems import Shape
from tests.ordering.problems import random_problems
from tests.ordering.search.test_steps import problems_with_values, unshared


def shortest_by_trial(problem: OverlapProblem) -> float:
    """The shortest makespan of all orders of steps."""
    steps = steps_of(problem)
    best = float("inf")
    for order in itertools.permutations(range(len(steps))):
        place = {step: position for position, step in enumerate(order)}
        if all(place[source] < place[step] for step in order for source in steps.before[step]):
            best = min(best, problem.makespan(steps.to_nodes(order)))
    return best


@settings(max_examples=60, deadline=None)
@given(random_problems(most_nodes=7))
def test_a_beam_that_cuts_nothing_finds_the_shortest_of_all_orders(problem: OverlapProblem) -> None:
    problem = dataclasses.replace(problem, network=Network(shared_link=False))
    found = Beam(steps_of(problem)).run(10_000, Choices.ALL)
    assert found.complete
    assert found.orders[0][0] == pytest.approx(shortest_by_trial(problem), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(random_problems())
def test_every_beam_ends_with_legal_orders_of_the_length_it_says(problem: OverlapProblem) -> None:
    problem = unshared(problem)
    steps = steps_of(problem)
    for choices in Choices:
        for seconds, _, order in Beam(steps).run(5, choices).orders:
            nodes = steps.to_nodes(order)
            check_order(problem.nodes, nodes, problem.dependencies)
            assert problem.makespan(nodes) == pytest.approx(seconds, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(random_problems())
def test_exploring_gives_a_legal_order_on_every_network(problem: OverlapProblem) -> None:
    found = explored(problem, [], work=500)
    assert found is not None
    check_order(problem.nodes, found.order, problem.dependencies)
    assert found == explored(problem, [], work=500), "the same at every call"


@settings(max_examples=60, deadline=None)
@given(random_problems(most_nodes=7))
def test_nothing_is_shorter_than_what_is_called_proven(problem: OverlapProblem) -> None:
    found = explored(problem, [], work=2_000)
    assert found is not None
    if found.proven:
        assert problem.makespan(found.order) <= shortest_by_trial(problem) + 1e-9


@settings(max_examples=60, deadline=None)
@given(problems_with_values())
def test_no_order_found_exceeds_the_memory_limit(problem: OverlapProblem) -> None:
    lean = leanest(problem)
    check_order(problem.nodes, lean, problem.dependencies)
    coarse = coarsened(problem)
    steps = with_bytes(steps_of(coarse.problem), coarse, problem)
    limit = problem.peak_bytes(lean) + 3
    for _, peak, order in Beam(steps, limit).run(20, Choices.ALL).orders:
        assert problem.peak_bytes(coarse.written_out(steps.to_nodes(order))) <= peak <= limit


def test_windows_make_the_best_order_of_a_deep_problem_shorter() -> None:
    problem = Shape({"B": ("moe",) * 16, "F": ("moe",) * 16}, 1.0).problem(0)
    found = [explored(problem, [], work=work) for work in (2_000, 30_000)]
    spans = [problem.makespan(each.order) for each in found if each is not None]
    assert len(spans) == 2
    assert spans[1] < spans[0]


def test_another_seed_may_find_another_order() -> None:
    problem = Shape({"B": ("moe",) * 16, "F": ("moe",) * 16}, 1.0).problem(0)
    orders = [explored(problem, [], work=10_000, seed=seed) for seed in (0, 1)]
    assert orders[0] != orders[1]
