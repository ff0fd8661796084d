"""Policy search on the problems that CP-SAT solved: within the limits, and never above another policy."""

import json

import pytest
from click.testing import CliRunner

from annopipe.cli.search import command
from benchmarks.search import problems
from benchmarks.search.comparison import LIMITS, compared, proved_so_far
from benchmarks.search.problems import large, suite

PROVEN, SUITE = proved_so_far(), suite()
POLICIES = ("sequential", "alternate", "dualpipe", "megatron", "list", "auto", "search")


def test_more_than_30_optima_of_at_most_60_tasks_are_written_down() -> None:
    assert set(PROVEN) == set(SUITE) | set(large())
    assert sum(PROVEN[name].kind == "optimum" for name in SUITE) >= 50
    assert all(sum(node.kind != "wait" for node in problem.nodes) <= 60 for problem in SUITE.values())


@pytest.mark.parametrize("name", SUITE)
def test_search_is_within_a_hundredth_of_the_optimum_and_never_above_another_policy(name: str) -> None:
    (row,) = compared({name: SUITE[name]}, POLICIES, PROVEN)
    assert 1 - 1e-9 <= row.over["search"] <= LIMITS[row.reference.kind]
    assert row.is_within_limit


@pytest.mark.slow
@pytest.mark.parametrize("name", large())
def test_search_is_within_two_hundredths_of_the_bound_of_larger_problems(name: str) -> None:
    (row,) = compared({name: large()[name]}, POLICIES, PROVEN)
    assert 1 <= row.over["search"] <= LIMITS["bound"]
    assert row.is_within_limit


def test_the_command_prints_a_row_for_each_problem_and_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: SUITE[name] for name in list(SUITE)[:3]}
    monkeypatch.setattr(problems, "suite", lambda: few)
    found = CliRunner().invoke(command, ["--quick"], catch_exceptions=False)
    assert found.exit_code == 0
    assert all(name in found.output for name in few)
    assert "search is at most 1.0" in found.output
    rows = json.loads(CliRunner().invoke(command, ["--quick", "--json"], catch_exceptions=False).output)["problems"]
    assert all(row["ok"] for row in rows)
