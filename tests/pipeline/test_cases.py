"""The cases of the rank programs beside this file, on real ranks over gloo: all cases of a program in one start."""

import json

import pytest

from benchmarks.launch import run_ranks

PROGRAMS = ("boundary_cases", "state_cases")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_case_holds(program, ranks):
    run_cases(program, ranks)


@pytest.mark.nightly
@pytest.mark.parametrize("program", [*PROGRAMS, "expert_cases"])
def test_every_case_holds_on_four_ranks(program):
    run_cases(program, 4)


def run_cases(program, ranks):
    outputs = run_ranks(f"tests.pipeline.{program}", ranks, timeout_s=400)
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    problems = [(case, problem) for outcome in found for case, problem in outcome.items() if problem]
    assert not problems, "\n".join(f"{case}: {problem}" for case, problem in problems)
    assert all(outcome for outcome in found)
