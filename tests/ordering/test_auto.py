"""``auto`` is never slower than another policy, says why, and stays with program order where nothing pays."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.graphs.reordering import check_order
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies import Search, alternate, auto, dualpipe, list_, megatron, sequential, torch_
from annopipe.ordering.coarsening import coarsened
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from tests.ordering.problems import balanced_pair, deepseek_pair, model_problem, random_problems, suite

SUITE = suite()
NAMED = (sequential, alternate, dualpipe, megatron, list_)


def test_the_suite_has_at_least_40_problems() -> None:
    assert len(SUITE) >= 40


@pytest.mark.parametrize("name", SUITE)
def test_auto_is_never_above_another_policy_nor_search_above_auto(name: str) -> None:
    problem = SUITE[name]
    orders = [auto(problem), Search(steps=30_000)(problem)]
    found, searched = (problem.makespan(order) for order in orders)
    for policy in (*NAMED, torch_):
        other = policy(problem)
        check_order(problem.nodes, other, problem.dependencies)
        assert found <= problem.makespan(other) * (1 + 1e-9), policy.__name__
    for order in orders:
        check_order(problem.nodes, order, problem.dependencies)
    assert lower_bound(problem) * (1 - 1e-9) <= searched <= found * (1 + 1e-9)


def test_auto_is_close_to_the_bound_on_the_published_pair() -> None:
    problem = deepseek_pair()
    assert problem.makespan(auto(problem)) <= 1.007 * lower_bound(problem)


@pytest.mark.parametrize(("blocks", "optimum"), [(2, 1.0266), (4, 1.0274)])
def test_auto_is_within_half_a_percent_of_the_optimum_of_measured_pairs(blocks: int, optimum: float) -> None:
    """The optimum was found and proved by a constraint solver (CP-SAT), as a multiple of the lower bound."""
    problem = balanced_pair(blocks)
    assert problem.makespan(auto(problem)) <= 1.005 * optimum * lower_bound(problem) < 1.04 * lower_bound(problem)


def test_auto_says_what_it_chose_against_what_and_what_stays_exposed() -> None:
    reason = auto(balanced_pair(4)).reason
    assert reason.startswith(("search: ", "list: "))
    for part in ("less than sequential", "of the lower bound", "alternate ", "dualpipe ", "most exposed: "):
        assert part in reason


def test_program_order_is_kept_where_there_is_nothing_to_hide() -> None:
    order = auto(model_problem({"B": 2, "F": 2}, {"B": "mlp attention", "F": "attention mlp"}))
    assert list(order) == list(range(len(order)))
    assert order.reason == "sequential: there is no communication to hide"


def test_program_order_is_kept_where_nothing_can_be_hidden() -> None:
    nodes = (
        OverlapNode(0, "launch", "dispatch", "launch", "F", "forward", 1.0, "ep"),
        OverlapNode(1, "wait", "dispatch", "wait", "F", "forward", launch=0),
        OverlapNode(2, "experts", "experts", "compute", "F", "forward", 1.0),
    )
    order = auto(OverlapProblem(nodes, ((), (0,), (1,))))
    assert list(order) == [0, 1, 2]
    assert order.reason.startswith("sequential: 2 s, and no other order is shorter; most exposed: F/dispatch, 1 s: ")


def test_auto_is_the_same_at_every_call() -> None:
    problem = balanced_pair(2)
    assert auto(problem) == auto(problem)


@settings(max_examples=60, deadline=None)
@given(random_problems())
def test_auto_is_legal_and_never_above_the_others_on_random_problems(problem: OverlapProblem) -> None:
    order = auto(problem)
    check_order(problem.nodes, order, problem.dependencies)
    assert problem.makespan(order) <= min(problem.makespan(policy(problem)) for policy in NAMED) * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(random_problems(), st.lists(st.floats(0, 1), min_size=24, max_size=24))
def test_every_order_of_the_coarse_problem_is_one_of_the_whole(problem: OverlapProblem, rank: list[float]) -> None:
    regions = tuple(dataclasses.replace(node, region=f"r{node.index % 3}") for node in problem.nodes)
    problem = dataclasses.replace(problem, nodes=regions)
    coarse = coarsened(problem, share=0.3)
    assert sorted(index for piece in coarse.members for index in piece) == list(range(len(problem.nodes)))
    order = coarse.written_out(coarse.problem.topological(rank[: len(coarse.members)]))
    check_order(problem.nodes, order, problem.dependencies)
    assert sum(coarse.problem.costs) == pytest.approx(sum(problem.costs))


def test_fillers_of_two_regions_that_need_each_other_in_turns_stay_apart() -> None:
    nodes = tuple(
        OverlapNode(i, f"n{i}", region, "compute", "B", "weight_grad") for i, region in enumerate(["a", "b", "a"])
    )
    problem = OverlapProblem(nodes, ((), (0,), (1,)))
    assert coarsened(problem).members == ((0,), (1,), (2,))
