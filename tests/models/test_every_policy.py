"""Every model, routing, number of ranks and lane combination is bitwise equal to eager under every policy."""

import json

import pytest

import annopipe as ap
from benchmarks.launch import run_ranks
from tests.models import cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[1, 2, 4], ids="{} ranks".format)
def results(request: pytest.FixtureRequest) -> list[dict]:
    """What each rank of policy_worker.py printed."""
    outputs = run_ranks("tests.models.policy_worker", request.param, timeout_s=400)
    return [json.loads(text.splitlines()[-1]) for text in outputs]


POLICIES = [name for name in ap.policies() if name != "optimal"]  # which takes small problems only


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_bitwise_equal_to_eager(results: list[dict], policy: str) -> None:
    for rank, result in enumerate(results):
        wrong = {case: names[policy] for case, names in result["wrong"].items() if names.get(policy)}
        assert wrong == {}, f"rank {rank} of {len(results)}"


def test_every_model_and_routing_is_among_the_cases_and_ran_under_every_policy(results: list[dict]) -> None:
    lanes = ("pair", "dense forward", "dense backward")
    expected = {f"{model}/{kind}/{lane}" for model in cases.MOE for kind in ("balanced", "skewed") for lane in lanes}
    for result in results:
        assert set(result["wrong"]) > expected | {"gpt/pair", "mlp/pair"}
        assert any("four layers" in case for case in result["wrong"])
        for split in ("deepseek/moe in 3", "mixtral/stage in 2"):
            assert set(result["wrong"]) > {f"{split}/{lane}" for lane in ("forward", "backward", "lanes in lanes")}
        for case, names in result["wrong"].items():
            assert names.keys() >= set(POLICIES) - (set() if case.endswith("/pair") else {"torch"})


@pytest.mark.parametrize("model", cases.MOE)
def test_no_rank_idles_when_balanced_and_one_of_four_does_when_skewed(results: list[dict], model: str) -> None:
    assert not any(f"{model}/balanced/pair" in result["idle"] for result in results)
    if len(results) == 4:
        assert any(f"{model}/skewed/pair" in result["idle"] for result in results)
