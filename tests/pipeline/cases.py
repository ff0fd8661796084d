"""Run the cases of a rank program on real ranks over gloo: all of them in one start."""

import json
from collections.abc import Iterable

from benchmarks.launch import run_ranks


def check_cases(program: str, ranks: int, names: Iterable[str] = ()) -> None:
    """All cases, or those named, hold on every rank."""
    outputs = run_ranks(f"tests.pipeline.{program}", ranks, args=[*names], timeout_s=400)
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    problems = [(case, problem) for outcome in found for case, problem in outcome.items() if problem]
    assert not problems, "\n".join(f"{case}: {problem}" for case, problem in problems)
    assert all(outcome for outcome in found)
