"""The cases of the rank programs beside this file, on real ranks over gloo: all cases of a program in one start."""

import json

import pytest

from benchmarks.launch import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ranks"), [("boundary_cases", 2), ("state_cases", 1), ("shape_cases", 2)])
def test_every_case_holds(program, ranks):
    run_cases(program, ranks)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("shape_cases", 1),
        ("shape_cases", 4),
        ("boundary_cases", 1),
        ("boundary_cases", 4),
        ("state_cases", 2),
        ("state_cases", 4),
        ("expert_cases", 4),
    ],
)
def test_every_case_holds_on_other_counts_of_ranks(program, ranks):
    run_cases(program, ranks)


def run_cases(program, ranks):
    outputs = run_ranks(f"tests.pipeline.{program}", ranks, timeout_s=400)
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    problems = [(case, problem) for outcome in found for case, problem in outcome.items() if problem]
    assert not problems, "\n".join(f"{case}: {problem}" for case, problem in problems)
    assert all(outcome for outcome in found)
