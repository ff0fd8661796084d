"""Policy ``optimal``: proofs where OR-tools is there, a clear refusal where it is not or a problem does not fit."""

import dataclasses
import importlib
import importlib.util
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import annopipe as ap
from annopipe.graphs.reordering import check_order
from annopipe.ordering.builtin_policies import optimal as default
from annopipe.ordering.problem import OverlapProblem
from annopipe.simulation import Network
from benchmarks.search.comparison import proved_so_far
from benchmarks.search.problems import Shape, suite
from tests.ordering.problems import random_problems

SUITE, PROVEN = suite(), proved_so_far()
needs_solver = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-tools is not installed (pip install 'annopipe[optimal]')"
)


@needs_solver
@pytest.mark.parametrize(
    "name", ["pair of 2, x1", "pair of 3, x2", "dense with MoE, x2", "two links, x1.5", "issue times, x1"]
)
def test_the_optimum_is_proved_again(name: str) -> None:
    problem = SUITE[name]
    order = ap.Optimal(time_limit_s=60)(problem)
    check_order(problem.nodes, order, problem.dependencies)
    assert round(problem.makespan(order) * 1e6) == PROVEN[name].time_us
    tasks = sum(node.kind != "wait" for node in problem.nodes)
    assert order.reason.endswith(f"proven: no order of these {tasks} tasks is shorter")


@needs_solver
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_problems(most_nodes=7))
def test_no_legal_order_is_shorter_than_the_proven_one(problem: OverlapProblem) -> None:
    problem = dataclasses.replace(problem, network=Network(shared_link=False))
    proof = ap.Optimal(time_limit_s=30).prove(problem)
    check_order(problem.nodes, proof.order, problem.dependencies)
    assert proof.seconds == pytest.approx(problem.makespan(proof.order), abs=1e-12)
    shortest = proof.seconds
    for order in itertools.permutations(range(len(problem.nodes))):
        place = {index: position for position, index in enumerate(order)}
        if all(place[s] < place[i] for i, earlier in enumerate(problem.dependencies) for s in earlier):
            shortest = min(shortest, problem.makespan(order))
    assert shortest == pytest.approx(proof.seconds, rel=1e-4)
    assert proof.bound <= shortest * (1 + 1e-9)


@needs_solver
def test_a_gap_is_reported_where_the_time_is_too_short_for_a_proof() -> None:
    moe = ("moe",) * 5
    problem = Shape({"B": moe, "F0": moe, "F1": moe}, 1.0).problem(1)
    order = ap.Optimal(time_limit_s=0.2)(problem)
    assert "not proven: at most " in order.reason
    assert order.reason.endswith("% longer than the shortest of 70 tasks")


@needs_solver
def test_times_that_are_no_whole_ticks_are_proved_up_to_rounding() -> None:
    problem = SUITE["pair of 2, x1"]
    nodes = tuple(dataclasses.replace(node, cost=node.cost * 1.000123456789) for node in problem.nodes)
    proof = ap.Optimal(time_limit_s=30).prove(dataclasses.replace(problem, nodes=nodes))
    assert proof.bound <= proof.seconds <= proof.bound * 1.0001


def test_what_is_too_large_or_shares_a_link_is_refused_by_name() -> None:
    moe = ("moe",) * 16
    with pytest.raises(ap.OrderError, match=r"policy 'optimal': 160 nodes .* too many .*use policy='search'"):
        default(Shape({"B": moe, "F": moe}, 1.0).problem(0))
    for network in (Network(in_flight=2), Network(interference=0.1)):
        with pytest.raises(ap.OrderError, match=r"policy 'optimal': on Network.* use policy='search'"):
            default(dataclasses.replace(SUITE["pair of 2, x1"], network=network))


def test_without_the_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "annopipe.ordering.cp_sat":
            raise ImportError("No module named 'ortools'")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        ap.OrderError, match=r"needs OR-tools \(No module named 'ortools'\): pip install 'annopipe\[opt"
    ):
        default(SUITE["pair of 2, x1"])


@pytest.mark.parametrize("options", [{"time_limit_s": 0}, {"workers": 0}, {"workers": 1.5}])
def test_limits_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ap.OrderError, match="give seconds and a whole number of threads"):
        ap.Optimal(**options)
