"""OverlapProblem: program order is checked, and topological orders follow ranks and chains."""

import pytest
from hypothesis import given, settings

import annopipe as ap
from annopipe.graphs.reordering import check_order
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from tests.ordering.problems import random_problems


def _nodes(count: int) -> tuple[OverlapNode, ...]:
    return tuple(OverlapNode(i, f"n{i}", "r", "compute", "F", "") for i in range(count))


@pytest.mark.parametrize("dependencies", [((), (1,)), ((1,), ()), ((), (-1,)), ((),)])
def test_nodes_that_are_not_in_program_order_are_refused(dependencies: tuple) -> None:
    with pytest.raises(ap.OrderError, match="program order|give one per node"):
        OverlapProblem(_nodes(2), dependencies)


def test_a_chain_is_kept_and_a_cycle_is_refused() -> None:
    problem = OverlapProblem(_nodes(3), ((), (), (0,)))
    assert problem.topological([0.0, 0.0, 0.0], chain=[1, 0]) == [1, 0, 2]
    with pytest.raises(ap.OrderError, match="no order is legal: n0, n2 wait for each other"):
        problem.topological([0.0, 0.0, 0.0], chain=[2, 0])


@settings(max_examples=100, deadline=None)
@given(random_problems())
def test_a_topological_order_by_position_is_program_order(problem: OverlapProblem) -> None:
    count = len(problem.nodes)
    assert problem.topological([float(i) for i in range(count)]) == list(range(count))
    backwards = problem.topological([-float(i) for i in range(count)])
    check_order(problem.nodes, backwards, problem.dependencies)


def test_lanes_and_regions_come_in_order_of_appearance() -> None:
    nodes = tuple(
        OverlapNode(i, f"n{i}", r, "compute", lane, "", 0.5)
        for i, (lane, r) in enumerate([("B", "x"), ("F", "y"), ("B", "z")])
    )
    problem = OverlapProblem(nodes, ((),) * 3)
    assert (problem.lanes, problem.regions, problem.costs) == (("B", "F"), ("x", "y", "z"), (0.5, 0.5, 0.5))
