"""Exchanges of counts: under every policy, none that could be underway is missing when the host reads another's."""

import dataclasses

import pytest
from hypothesis import given, settings

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.builtin_policies import Search, alternate, auto, dualpipe, list_, megatron, torch_
from annopipe.ordering.host_reads import counts_early
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.registry import Policy, find
from tests.ordering.problems import model_problem, random_problems

FORWARD = "attention dispatch experts combine"
LANES = {
    "two nano-batches": {"F0": FORWARD, "F1": FORWARD},
    "three nano-batches": {"F0": FORWARD, "F1": FORWARD, "F2": FORWARD},
    "a backward beside two": {"B": "combine experts dispatch attention", "F0": FORWARD, "F1": FORWARD},
}
PATTERN = find("F0.attention | F1.attention ; F0.dispatch | F1.dispatch ; F0.experts | F1.experts")[1]
POLICIES: dict[str, Policy] = {
    "alternate": alternate,
    "dualpipe": dualpipe,
    "megatron": megatron,
    "list": list_,
    "auto": auto,
    "search": Search(steps=10_000),
    "torch": torch_,
    "pattern": PATTERN,
}


def read_too_early(problem: OverlapProblem, order: list[int]) -> list[tuple[str, str]]:
    """Host reads that come before an exchange of counts for which everything was there."""
    place = {index: position for position, index in enumerate(order)}
    return [
        (problem.nodes[read].name, problem.nodes[exchange].name)
        for read in order
        for exchange in problem.count_exchanges
        if problem.nodes[read].kind == "host"
        and place[exchange] > place[read]
        and all(place[source] < place[read] for source in problem.dependencies[exchange])
    ]


def lanes_with_counts(lanes: dict[str, str], transfer: float) -> OverlapProblem:
    problem = model_problem(dict.fromkeys(lanes, 3), lanes, counts=True)
    nodes = [
        dataclasses.replace(node, cost=node.cost * transfer, floating=True)
        if node.kind == "launch" and node.cost == 1.0
        else node
        for node in problem.nodes
    ]
    return dataclasses.replace(problem, nodes=tuple(nodes))


@pytest.mark.parametrize("transfer", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", POLICIES)
def test_the_counts_of_all_lanes_are_underway_before_any_is_read(name: str, lanes: str, transfer: float) -> None:
    problem = lanes_with_counts(LANES[lanes], transfer)
    assert len(problem.count_exchanges) == 3 * len(problem.lanes)
    assert read_too_early(problem, list(POLICIES[name](problem))) == []


@settings(max_examples=100, deadline=None)
@given(random_problems())
def test_no_read_is_ahead_of_an_exchange_that_could_be_issued(problem: OverlapProblem) -> None:
    order = counts_early(problem, waits_late(problem, range(len(problem.nodes))))
    assert read_too_early(problem, order) == []
