"""The search is not worse than the baselines here; small instances are near their proven optima."""

import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from annopipe.cli.bench import command as bench
from annopipe.tuning.layers import Layer
from annopipe.tuning.tuner import tune
from annopipe.tuning.workload import Workload
from benchmarks.tuning.baselines import command
from benchmarks.tuning.command import SUITE
from benchmarks.tuning.repeating import repeating_step
from benchmarks.tuning.zero_bubble import PROBLEMS, heuristic_step, problem

LAYER = Layer(1.0, 1.0, 1.0, activation=1.0)


@pytest.mark.parametrize("given", PROBLEMS[:3], ids=lambda given: problem(*given).name)
def test_the_search_is_not_worse_than_the_zero_bubble_heuristic_on_uniform_costs(
    given: tuple[int, int, tuple[float, float, float, float], float],
) -> None:
    work = problem(*given)
    found = tune(work, effort=5_000, copies=1, workers=1, best=1)[0].timeline.makespan
    assert found <= heuristic_step(work) * (1 + 1e-9)


@pytest.mark.parametrize("memory", [None, pytest.param(6.0, marks=pytest.mark.slow)])
def test_the_search_is_never_worse_than_repeating_blocks(memory: float | None) -> None:
    work = Workload((LAYER,) * 8, ranks=2, microbatches=6, memory=memory)
    found = tune(work, effort=10_000, workers=1, best=1)[0].timeline.makespan
    assert found <= repeating_step(work) * (1 + 1e-9) < math.inf


def test_no_block_repeats_where_the_loss_is_of_the_whole_batch() -> None:
    towers = Workload((LAYER,), ranks=3, microbatches=4, towers=((LAYER,) * 3,) * 2)
    assert repeating_step(towers) == math.inf


@pytest.mark.slow
def test_the_command_prints_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tuning.baselines.PROBLEMS", PROBLEMS[:1])
    result = CliRunner().invoke(command, ["--workload", "few-microbatches", "--effort", "2000"])
    assert result.exit_code == 0, result.output
    assert "published, measured: 1.49" in result.output
    assert result.output.count("simulated; geometric mean") == 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["balanced", "gpt5b-vocab-256k", "tight-memory"])
def test_small_instances_are_within_3_percent_of_the_optimum_of_their_orders(name: str) -> None:
    pytest.importorskip("ortools")
    from benchmarks.tuning.optimum import measured

    work = Workload.from_toml(SUITE, name)
    step, proof = measured(work, ranks=2, microbatches=4, effort=60_000, seconds=20.0)
    assert proof.bound <= step + 0.05
    assert step <= 1.03 * proof.step


@pytest.mark.parametrize(("kept", "memory", "step"), [(0.0, 1.0, 17.0), (0.5, 1.0, 20.0), (1.0, 1.0, 20.0)])
def test_the_optimum_keeps_to_the_memory_that_schedules_are_simulated_with(
    kept: float, memory: float, step: float
) -> None:
    pytest.importorskip("ortools")
    from annopipe.tuning.reordering.problem import Problem
    from benchmarks.tuning.optimum import optimum

    work = Workload((replace(LAYER, kept_for_weight=kept),) * 2, ranks=2, microbatches=4, memory=memory)
    found = tune(work, effort=5_000, copies=1, workers=1, best=1)[0]
    proof = optimum(work, Problem.of(found.schedule, found.trial.costs(work), memory), seconds=20.0)
    assert proof.proven
    assert found.timeline.makespan == pytest.approx(step)
    assert proof.step == pytest.approx(step)


@pytest.mark.parametrize("name", ["tuning", "tuning-small", "tuning-baselines"])
def test_a_workload_that_the_suite_does_not_have_is_refused(name: str) -> None:
    result = CliRunner().invoke(bench, [name, "--workload", "balanced", "--workload", "nosuch"])
    assert result.exit_code == 2
    assert "the suite has no workload 'nosuch', only balanced, gpt5b-vocab-32k" in result.output
