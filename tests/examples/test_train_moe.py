"""The example's losses on pipeline and expert ranks are those of one process."""

import json

import pytest

from benchmarks.launch import run_ranks

STEPS = 8


@pytest.mark.slow
def test_pipeline_and_expert_ranks_train_as_one_process_does(tmp_path):
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    steps = ["--steps", str(STEPS)]
    run_ranks("examples.train_moe", 1, args=[*steps, "--whole", "--json", str(whole)], timeout_s=400)
    run_ranks("examples.train_moe", 4, args=[*steps, "--json", str(parts)], timeout_s=400)
    expected, found = json.loads(whole.read_text()), json.loads(parts.read_text())
    assert len(found) == STEPS
    assert found == pytest.approx(expected, abs=1e-8, rel=0)
    assert found[-1] < found[0]
