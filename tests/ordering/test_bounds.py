"""Lower bounds: each of the three, and that no order of a small problem beats them."""

import itertools
import pickle
from copy import deepcopy

from hypothesis import given, settings

from annopipe.ordering.bounds import LowerBound, lower_bound
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from tests.ordering.problems import random_problems


def test_bound_is_the_largest_of_computation_communication_and_critical_path() -> None:
    nodes = (
        OverlapNode(0, "a", "r", "compute", "F", "", 1.0),
        OverlapNode(1, "l", "r", "launch", "F", "", 5.0, "ep", issue=0.5),
        OverlapNode(2, "w", "r", "wait", "F", "", 0.0, "", 1),
        OverlapNode(3, "b", "r", "compute", "B", "", 3.0),
    )
    bound = lower_bound(OverlapProblem(nodes, ((), (0,), (1,), ())))
    assert (bound.computation, bound.communication, bound.critical_path) == (4.5, 5.0, 6.5)
    assert bound == 6.5


@settings(max_examples=120, deadline=None)
@given(random_problems(most_nodes=6))
def test_no_legal_order_of_a_small_problem_beats_the_bound(problem: OverlapProblem) -> None:
    bound = lower_bound(problem)
    for order in itertools.permutations(range(len(problem.nodes))):
        place = {index: position for position, index in enumerate(order)}
        legal = all(place[s] < place[i] for i, earlier in enumerate(problem.dependencies) for s in earlier)
        if legal:
            assert problem.makespan(order) >= bound - 1e-9


def test_a_bound_can_be_copied_and_sent() -> None:
    bound = LowerBound(1.0, 2.0, 3.0)
    for copy in (pickle.loads(pickle.dumps(bound)), deepcopy(bound)):
        assert (copy, copy.computation, copy.communication, copy.critical_path) == (3.0, 1.0, 2.0, 3.0)


def test_an_order_that_reaches_the_bound_is_not_below_it_by_rounding() -> None:
    bound = LowerBound(0.1 + 0.2, 0.2, 0.1).of_order(0.3)
    assert (bound, bound.computation, bound.communication, bound.critical_path) == (0.3, 0.3, 0.2, 0.1)
    assert LowerBound(0.1 + 0.2, 0.2, 0.1).of_order(0.5) == 0.1 + 0.2
    assert LowerBound(0.31, 0.2, 0.1).of_order(0.3) == 0.31  # more than rounding: a mistake that must be seen
