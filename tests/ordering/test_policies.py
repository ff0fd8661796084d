"""Policies: published orders, legality on random problems, and the bounds they cannot beat."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings

import annopipe as ap
from annopipe.graphs.reordering import check_order
from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies import alternate, dualpipe, list_, megatron, sequential
from annopipe.ordering.host_reads import counts_early, counts_together
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.ordering.registry import Policy
from tests.ordering.problems import deepseek_pair, launches_of, random_problems

ORDERS = json.loads((Path(__file__).parent / "golden" / "deepseek_v3_pair.json").read_text())


@pytest.mark.parametrize(("policy", "published"), [(dualpipe, "launch_order"), (megatron, "megatron_order")])
def test_the_published_orders_of_the_deepseek_pair_take_130_35_ms(policy: Policy, published: str) -> None:
    problem = deepseek_pair()
    order = policy(problem)
    check_order(problem.nodes, order, problem.dependencies)
    assert problem.makespan(order) == pytest.approx(130.35e-3, abs=0.01e-3)
    place = {problem.nodes[index].name: position for position, index in enumerate(order)}
    transfers = [name for name in ORDERS[published] if "dispatch" in name or "combine" in name]
    # A transfer is launched where its inputs are there, so combine(F) ahead of the weight gradients listed before it.
    assert launches_of(problem, order) == [f"{layer}.{name}" for layer in range(4) for name in transfers]
    inputs = [name for name in ORDERS[published] if name.endswith(("(F)", "(B)")) and name not in transfers]
    for layer in range(4):
        assert [place[f"{layer}.{name}"] for name in inputs] == sorted(place[f"{layer}.{name}"] for name in inputs)


def test_list_is_no_slower_than_the_published_order_of_the_deepseek_pair() -> None:
    problem = deepseek_pair()
    assert problem.makespan(list_(problem)) <= 130.35e-3
    assert lower_bound(problem) == pytest.approx(129.52e-3)


def test_policies_rank_as_expected_on_the_deepseek_pair() -> None:
    problem = deepseek_pair()
    spans = [problem.makespan(policy(problem)) for policy in (list_, alternate, sequential)]
    assert spans == sorted(spans)
    assert spans[2] == pytest.approx(sum(problem.costs))


@settings(max_examples=300, deadline=None)
@given(random_problems())
def test_every_policy_gives_a_legal_order_between_the_bound_and_the_sum(problem: OverlapProblem) -> None:
    most = sum(node.cost + node.issue for node in problem.nodes)
    for policy in (sequential, alternate, dualpipe, megatron, list_):
        order = policy(problem)
        check_order(problem.nodes, order, problem.dependencies)
        assert lower_bound(problem) <= problem.makespan(order) * (1 + 1e-12) + 1e-12
        assert problem.makespan(order) <= most * (1 + 1e-12) + 1e-12
        assert order == policy(problem), "a policy is deterministic"
    plain = (counts_early(problem, waits_late(problem, policy(problem))) for policy in (sequential, alternate))
    best = min(problem.makespan(waits_late(problem, order)) for order in plain)
    assert problem.makespan(list_(problem)) <= max(best, lower_bound(problem) * 1.002) + 1e-9


@settings(max_examples=200, deadline=None)
@given(random_problems())
def test_adjustments_keep_orders_legal_and_never_slow_the_waits(problem: OverlapProblem) -> None:
    order = list(range(len(problem.nodes)))
    late = waits_late(problem, order)
    check_order(problem.nodes, late, problem.dependencies)
    assert problem.makespan(late) <= problem.makespan(order) + 1e-9
    early = counts_early(problem, late)
    check_order(problem.nodes, early, problem.dependencies)
    counts = {problem.nodes[index].name for index in problem.count_exchanges}
    of_data = [[name for name in launches_of(problem, order) if name not in counts] for order in (early, late)]
    assert of_data[0] == of_data[1]
    together = counts_together(problem, late)
    check_order(problem.nodes, together, problem.dependencies)


def _node(index: int, kind: str, lane: str, cost: float = 1.0, launch: int = -1) -> OverlapNode:
    return OverlapNode(index, f"{lane}{index}", "r", kind, lane, "", cost, "ep" if kind == "launch" else "", launch)


def test_alternate_takes_turns_at_each_launch() -> None:
    lanes = [(lane, kind) for lane in "BF" for kind in ("compute", "launch", "compute", "launch", "compute")]
    nodes = tuple(_node(i, kind, lane) for i, (lane, kind) in enumerate(lanes))
    problem = OverlapProblem(nodes, ((),) * len(nodes))
    assert alternate(problem) == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9]


def test_alternate_does_not_end_a_turn_at_an_exchange_of_counts() -> None:
    nodes = (
        _node(0, "launch", "F"),  # counts
        _node(1, "wait", "F", 0.0, launch=0),
        _node(2, "host", "F"),
        _node(3, "launch", "F"),  # tokens
        _node(4, "compute", "B"),
    )
    problem = OverlapProblem(nodes, ((), (0,), (1,), (2,), ()))
    assert alternate(problem) == [0, 1, 2, 3, 4]


def test_data_whose_result_the_host_reads_later_on_ends_a_turn() -> None:
    nodes = (
        dataclasses.replace(_node(0, "launch", "F"), floating=True),  # combine
        _node(1, "wait", "F", 0.0, launch=0),
        _node(2, "compute", "F"),  # the next layer up to its router
        _node(3, "host", "F"),
        _node(4, "compute", "B"),
    )
    problem = OverlapProblem(nodes, ((), (0,), (1,), (2,), ()))
    assert alternate(problem) == [0, 4, 1, 2, 3]


def test_the_policies_are_listed_from_the_plainest_to_the_one_for_comparison() -> None:
    built_in = ("sequential", "alternate", "dualpipe", "megatron", "list", "auto", "search", "optimal", "torch")
    assert tuple(name for name in ap.policies() if name in built_in) == built_in


def test_list_fills_the_gap_with_weight_gradients() -> None:
    nodes = (
        _node(0, "compute", "B"),
        OverlapNode(1, "w", "r", "compute", "B", "weight_grad", 2.0),
        _node(2, "launch", "B", 2.0),
        _node(3, "wait", "B", 0.0, launch=2),
        _node(4, "compute", "B"),
    )
    problem = OverlapProblem(nodes, ((), (0,), (0,), (2,), (3,)))
    assert list_(problem) == [0, 2, 1, 3, 4]
    assert problem.makespan(list_(problem)) == pytest.approx(4.0)
