"""ap.overlap: plans run bitwise equal, refuse illegal orders with a message, and leave their graph alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.graphs.stage_graph import body
from annopipe.ordering import registry
from annopipe.simulation import Network


class Block(nn.Module):
    """A small stage with dropout, so that random numbers must keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ap.region("first"):
            x = torch.dropout(self.first(x).relu(), 0.3, train=True)
        with ap.region("second"):
            return x + self.second(x)


@pytest.fixture(name="pair")
def _pair() -> tuple[ap.StageGraph, dict[str, Any]]:
    torch.manual_seed(1)
    module, x = Block(), torch.randn(3, 6, requires_grad=True)
    graphs = ap.trace(module, (x,))
    assert graphs.backward is not None
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    saved = {**values, **graphs.forward(values), "tangent.output": torch.randn(3, 6)}
    lanes = {**{f"B.{k}": v for k, v in saved.items()}, **{f"F.{k}": v for k, v in values.items()}}
    return both, lanes


def _run(plan: ap.OverlapPlan, values: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(7)
    return plan.run(values)


@pytest.mark.parametrize("policy", ["sequential", "alternate", "list"])
def test_every_policy_is_bitwise_equal_to_program_order(policy: str, pair: tuple[ap.StageGraph, dict]) -> None:
    both, values = pair
    torch.manual_seed(7)
    expected = both(values)
    plan = ap.overlap(both, policy=policy, costs=ap.costs.measure(both, values, repeat=1, warmup=0))
    found = _run(plan, values)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert sorted(plan.order) == sorted(node.name for node in plan.problem.nodes)
    assert plan.timeline.makespan >= plan.lower_bound > 0


def test_planning_leaves_the_graph_as_it_was_and_plans_do_not_share_nodes(pair: tuple[ap.StageGraph, dict]) -> None:
    both, values = pair
    before = [node.name for node in body(both.graph)]
    costs = ap.costs.measure(both, values, repeat=1, warmup=0)
    backwards = ap.overlap(both, policy=lambda p: p.topological([-float(n.index) for n in p.nodes]), costs=costs)
    forwards = ap.overlap(both, policy="sequential", costs=costs)
    assert [node.name for node in body(both.graph)] == before
    assert backwards.order != forwards.order
    assert all(torch.equal(_run(backwards, values)[k], v) for k, v in _run(forwards, values).items())


@pytest.mark.parametrize("form", ["indices", "nodes", "names"])
def test_a_user_policy_may_return_indices_nodes_or_names(form: str, pair: tuple[ap.StageGraph, dict]) -> None:
    both, values = pair

    def mine(problem: ap.OverlapProblem) -> list:
        by_form = {
            "indices": range(len(problem.nodes)),
            "nodes": problem.nodes,
            "names": [n.name for n in problem.nodes],
        }
        return list(by_form[form])

    plan = ap.overlap(both, policy=mine)
    assert plan.policy == "mine"
    assert plan.indices == tuple(range(len(plan.order)))
    assert _run(plan, values).keys() == both(values).keys()


def test_registered_policy_is_found_by_name_and_a_second_of_that_name_is_refused(
    pair: tuple[ap.StageGraph, dict],
) -> None:
    both, _ = pair

    def given_name(problem: ap.OverlapProblem) -> tuple:
        return problem.nodes

    def other(problem: ap.OverlapProblem) -> tuple:
        return problem.nodes

    other.__name__ = "given_name"
    try:
        ap.policy(given_name)
        assert "given_name" in ap.policies()
        assert ap.overlap(both, policy="given_name").policy == "given_name"
        with pytest.raises(ap.OrderError, match="'given_name' exists already"):
            ap.policy(other)
    finally:
        registry.forget("given_name")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda n: n[1:], "1 of .* nodes are missing"),
        (lambda n: [*n, n[0]], "stands twice"),
        (lambda n: n[::-1], "stands before .*, which must come first"),
        (lambda n: [*n[:-1], 10_000], "not one of the graph's"),
        (lambda n: [*n[:-1], 1.5], "returned 1.5"),
        (lambda n: [*n[:-1], "nobody"], "returned 'nobody'"),
        (lambda n: 1 / 0, "failed: ZeroDivisionError"),
        (lambda n: None, "returned nothing"),
    ],
)
def test_an_illegal_order_is_refused_with_what_is_wrong(order, message: str, pair: tuple[ap.StageGraph, dict]) -> None:
    both, _ = pair
    with pytest.raises(ap.OrderError, match=message):
        ap.overlap(both, policy=lambda problem: order([node.index for node in problem.nodes]))


def test_an_unknown_policy_is_refused_with_the_names_there_are(pair: tuple[ap.StageGraph, dict]) -> None:
    with pytest.raises(ap.OrderError, match="no overlap policy 'lst'; there are .*list.* a pattern such as"):
        ap.overlap(pair[0], policy="lst")


def test_without_costs_the_roofline_of_this_machine_is_taken(pair: tuple[ap.StageGraph, dict]) -> None:
    both, _ = pair
    assert ap.overlap(both).policy == "auto"
    plan = ap.overlap(both, policy="alternate")
    assert not plan.problem.has_costs, "a policy that looks at no costs waits for none"
    assert plan.timeline.makespan >= plan.lower_bound > 0
    assert ap.simulate(plan).makespan == plan.timeline.makespan
    assert set(plan.problem.costs) == set(ap.overlap(both, policy="list").problem.costs)


def test_costs_that_lack_a_node_are_refused(pair: tuple[ap.StageGraph, dict]) -> None:
    with pytest.raises(ap.CostError, match=r"no cost for \d+ of"):
        ap.overlap(pair[0], policy="list", costs={"F.mm": 1.0})


@pytest.mark.parametrize("pattern", ["B.second | F.first ; F.second ; B.first ; B.first.W", "F.first | B.second"])
def test_a_pattern_is_a_policy(pair: tuple[ap.StageGraph, dict], pattern: str) -> None:
    both, values = pair
    plan = ap.overlap(both, policy=pattern)
    assert plan.policy == pattern
    torch.manual_seed(7)
    expected = both(values)
    found = _run(plan, values)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_pattern_that_does_not_fit_shows_the_place(pair: tuple[ap.StageGraph, dict]) -> None:
    with pytest.raises(
        ap.OrderError, match=r"pattern, column 1: there is no lane 'X'; there are .*\n  X.first\n  \^\^\^"
    ):
        ap.overlap(pair[0], policy="X.first")
    with pytest.raises(ap.OrderError, match=r"two pieces in a row"):
        ap.overlap(pair[0], policy="F.first B.second")
    alone = ap.trace(torch.nn.Linear(2, 2), (torch.ones(2, 2),)).forward
    with pytest.raises(ap.OrderError, match=r"the graph has no lanes, so there is no lane 'F'; ap.multiplex"):
        ap.overlap(alone, policy="F.first")


def test_a_plan_without_costs_can_be_simulated_with_given_ones(pair: tuple[ap.StageGraph, dict]) -> None:
    both, _ = pair
    plan = ap.overlap(both, policy="alternate")
    costs = ap.NodeCosts(dict.fromkeys(plan.order, 0.5))
    assert ap.simulate(plan, costs).makespan == 0.5 * len(plan.order)


def test_overlap_works_on_a_graph_that_is_not_combined() -> None:
    module, x = Block(), torch.randn(3, 6)
    graphs = ap.trace(module, (x,))
    plan = ap.overlap(graphs.forward, policy="alternate")
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    assert _run(plan, values).keys() == graphs.forward(values).keys()


@pytest.mark.parametrize("graph", [None, nn.Linear(2, 2), "graphs"])
def test_something_else_than_a_stage_graph_is_refused(graph: Any) -> None:
    given: Any = ap.trace(nn.Linear(2, 2), (torch.ones(1, 2),)) if graph == "graphs" else graph
    with pytest.raises(ap.GraphError, match="overlap takes a stage graph, got"):
        ap.overlap(given)


def test_simulate_uses_the_network_of_the_costs(pair: tuple[ap.StageGraph, dict]) -> None:
    both, _ = pair
    plan = ap.overlap(both, policy="alternate")
    network = Network(in_flight=3)
    costs = ap.NodeCosts(dict.fromkeys(plan.order, 0.5), network=network)
    planned = ap.overlap(both, policy="alternate", costs=costs)
    assert planned.network == network
    for timeline in (planned.timeline, ap.simulate(planned), ap.simulate(plan, costs)):
        assert timeline.trace.network == network
    assert ap.simulate(plan, costs, Network(in_flight=2)).trace.network.in_flight == 2
    assert ap.simulate(plan, dict.fromkeys(plan.order, 0.25)).makespan == 0.25 * len(plan.order)


def test_a_policy_may_return_numpy_integers(pair: tuple[ap.StageGraph, dict]) -> None:
    both, _ = pair
    plan = ap.overlap(both, policy=lambda problem: list(np.arange(len(problem.nodes))))
    assert plan.indices == tuple(range(len(plan.order)))


def test_something_else_than_a_function_cannot_be_a_policy() -> None:
    with pytest.raises(ap.OrderError, match="a policy is a function"):
        ap.policy(3)  # type: ignore[type-var]
    with pytest.raises(ap.OrderError, match="no overlap policy"):
        ap.overlap(ap.trace(nn.Linear(2, 2), (torch.ones(1, 2),)).forward, policy=["list"])  # type: ignore[arg-type]
