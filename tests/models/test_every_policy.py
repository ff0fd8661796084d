"""Every model, routing, number of ranks and lane combination is bitwise equal to eager under every policy."""

import functools
import json

import pytest

import annopipe as ap
from benchmarks.launch import run_ranks
from tests.models import cases

RANKS = (1, 2, 4)


@functools.cache
def found(ranks: int) -> list[dict]:
    """What each rank printed, by rank; the processes run once."""
    outputs = run_ranks("tests.models.policy_worker", ranks, timeout_s=400)
    return [json.loads(text.splitlines()[-1]) for text in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("policy", ap.policies())
def test_results_are_bitwise_equal_to_eager(policy: str, ranks: int) -> None:
    for rank, result in enumerate(found(ranks)):
        assert {f"{model}/{kind}/pair" for model in cases.MOE for kind in ("balanced", "skewed")} < set(result["wrong"])
        wrong = {case: names[policy] for case, names in result["wrong"].items() if names[policy]}
        assert wrong == {}, f"rank {rank} of {ranks}"


@pytest.mark.slow
@pytest.mark.parametrize("model", cases.MOE)
def test_ranks_without_tokens_are_among_the_skewed_cases_only(model: str) -> None:
    idle = [{case for case in result["idle"] if case.startswith(model)} for result in found(4)]
    assert any(f"{model}/skewed/pair" in cases_of_rank for cases_of_rank in idle)
    assert not any(case.startswith(f"{model}/balanced") for cases_of_rank in idle for case in cases_of_rank)
