"""Policy ``search``: its options, its limit on memory, its promise to be the same everywhere."""

import dataclasses
import time
from typing import Any

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.graphs.reordering import check_order
from annopipe.ordering import planning
from annopipe.ordering.builtin_policies import auto
from annopipe.ordering.problem import OverlapProblem, Value
from annopipe.ordering.registry import find
from annopipe.ordering.values import values_of
from benchmarks.search.problems import Shape, suite
from tests.ordering.problems import deepseek_pair

SUITE = suite()


class Wide(nn.Module):
    """Two branches: running one after the other holds less than running them side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 256, bias=False)
        self.down = nn.Linear(256, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).sin().cos())


def two_forwards() -> ap.StageGraph:
    forward = ap.trace(Wide().requires_grad_(False), (torch.ones(64, 4),)).forward
    return ap.multiplex(forward, forward, lanes=("F0", "F1"))


def test_search_finds_the_optimum_of_the_published_pair() -> None:
    """130,347 us were proved by CP-SAT."""
    problem = deepseek_pair()
    order = ap.Search(steps=30_000)(problem)
    assert problem.makespan(order) == pytest.approx(130.347e-3, abs=1e-6)
    assert ", proven: no order is shorter (" in order.reason


def test_the_same_options_give_the_same_order_and_the_name_says_them() -> None:
    problem = SUITE["B, F0, F1 of 3, x1"]
    assert ap.Search(steps=5_000)(problem) == ap.Search(steps=5_000)(problem)
    plan = ap.overlap(two_forwards(), policy=ap.Search(seed=3, steps=100))
    assert plan.policy == "search(seed=3, steps=100)"
    assert ap.overlap(two_forwards(), policy="search").policy == "search"
    assert find("search")[1] == ap.Search()


def test_search_keeps_a_memory_limit_and_says_what_is_possible_where_it_cannot() -> None:
    both = two_forwards()
    plenty = ap.overlap(both, policy=ap.Search(steps=1_000, memory_bytes=2**30))
    held = plenty.problem.peak_bytes(plenty.indices)
    assert f"{held:,} bytes live, of memory_bytes=1,073,741,824" in plenty.reason
    values = 64 * 256 * 4  # of one wide value; two are live while one is made of the other
    least = ap.overlap(both, policy=ap.Search(steps=1_000, memory_bytes=2 * values + 4 * 64 * 4 * 4))
    assert least.problem.peak_bytes(least.indices) <= 2 * values + 4 * 64 * 4 * 4
    with pytest.raises(
        ap.OrderError, match=r"holds at most memory_bytes=1,000: the leanest found holds 13\d,\d+ bytes, .*; allow 13"
    ):
        ap.overlap(both, policy=ap.Search(steps=1_000, memory_bytes=1_000))


def test_the_tighter_the_memory_limit_the_longer_the_order() -> None:
    problem = with_made_up_values(Shape({"B": ("moe",) * 3, "F": ("moe",) * 3}, 1.0).problem(1))
    program_order = range(len(problem.nodes))
    least, spans = problem.peak_bytes(program_order), []
    for limit in (10 * least, least + 30, least + 20, least + 10, least):
        order = ap.Search(steps=5_000, memory_bytes=limit)(problem)
        check_order(problem.nodes, order, problem.dependencies)
        assert problem.peak_bytes(order) <= limit
        spans.append(problem.makespan(order))
    assert spans == sorted(set(spans))
    assert spans[-1] < problem.makespan(program_order)
    with pytest.raises(ap.OrderError, match=f"allow {least:,} or more, or trace with recompute="):
        ap.Search(steps=5_000, memory_bytes=least - 1)(problem)


def with_made_up_values(problem: OverlapProblem) -> OverlapProblem:
    """A forward keeps 20 bytes a computation, a backward has as much kept for it; results in between have 10 bytes."""
    values = []
    for node in problem.nodes:
        users = set(problem.successors[node.index])
        users |= {user for wait in users if problem.nodes[wait].kind == "wait" for user in problem.successors[wait]}
        if node.kind != "wait":
            values.append(Value(10, node.index, tuple(users)))
        if node.kind == "compute":
            values.append(Value(20, node.index, (), kept=True) if node.lane == "F" else Value(20, -1, (node.index,)))
    return dataclasses.replace(problem, values=tuple(values))


def test_values_are_storages_from_their_maker_to_their_last_user() -> None:
    forward = ap.trace(Wide().requires_grad_(False), (torch.ones(64, 4),)).forward
    wide, narrow = 64 * 256 * 4, 64 * 4 * 4
    values = values_of(forward)
    assert sorted(value.size_bytes for value in values) == [narrow, narrow, wide, wide, wide]
    assert sum(value.made_by == -1 for value in values) == 1, "the input; parameters are there all the time"
    assert [value.size_bytes for value in values if value.kept] == [narrow]


def test_the_peak_is_that_of_the_tensors_that_a_run_keeps_alive() -> None:
    """Counted by interpreting the graph and forgetting each value after its last use, as generated code does."""
    both = two_forwards()
    for policy in ("sequential", ap.Search(steps=1_000, memory_bytes=2**30)):
        plan = ap.overlap(both, policy=policy)
        problem = dataclasses.replace(plan.problem, values=values_of(two_forwards()))
        assert problem.peak_bytes(plan.indices) == Counted(plan.graph).peak_bytes()


class Counted(torch.fx.Interpreter):
    """Runs a graph on ones, and adds up the storages that are alive."""

    def __init__(self, graph: ap.StageGraph) -> None:
        super().__init__(graph.module)
        self._ports, self._peak = graph.inputs, 0

    def peak_bytes(self) -> int:
        self.run(*(torch.ones([int(n) for n in port.shape]) for port in self._ports))
        return self._peak

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output":
            lasting = {node for node in self.env if node.op == "placeholder" and "param" in node.name}
            lasting |= {
                node for node, port in zip(self.module.graph.nodes, self._ports, strict=False) if port.role == "param"
            }
            alive = [value for node, value in [*self.env.items(), (n, result)] if node not in lasting]
            storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in alive}
            placeholders = [port for port in self._ports if port.role != "param"]
            if n.op != "placeholder" and placeholders:
                self._peak = max(self._peak, sum(storages.values()))
        return result


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 0.5}, "give whole numbers"),
        ({"steps": 0}, "steps from 1 on"),
        ({"memory_bytes": 0}, "give bytes as a whole number"),
        ({"memory_bytes": 1.5}, "give bytes as a whole number"),
        ({"time_limit_s": 0}, "give seconds, more than 0"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.OrderError, match=message):
        ap.Search(**options)


def test_a_time_limit_ends_the_search_and_wants_the_group_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Shape({"B": ("moe",) * 16, "F": ("moe",) * 16}, 1.0).problem(0)
    limited, started = ap.Search(steps=10**9, time_limit_s=0.01), time.monotonic()
    assert problem.makespan(limited(problem)) <= problem.makespan(auto(problem)) * 1.2
    assert time.monotonic() - started < 300
    assert not limited.is_repeatable
    plan = ap.overlap(two_forwards(), policy=limited)
    assert plan.policy == "search(steps=1000000000, time_limit_s=0.01)"
    monkeypatch.setattr(planning, "most_ranks", lambda problem: 4)
    with pytest.raises(ap.OrderError, match=r"depends on the clock, and 4 ranks run .*: give ap.overlap their group"):
        ap.overlap(two_forwards(), policy=limited)
    assert ap.overlap(two_forwards(), policy=ap.Search(steps=10)).policy == "search(steps=10)"


def test_without_communication_program_order_is_kept() -> None:
    assert ap.overlap(two_forwards(), policy="search").reason == "sequential: there is no communication to hide"
