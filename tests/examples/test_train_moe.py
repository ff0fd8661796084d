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


@pytest.mark.nightly
def test_a_run_goes_on_from_its_checkpoint_on_another_number_of_ranks(tmp_path):
    folder, losses = tmp_path / "checkpoint", []
    for ranks, expert_ranks, steps, more in ((4, 2, 3, ["--shard"]), (1, 1, 2, [])):
        written = tmp_path / f"{ranks}.json"
        options = ["--steps", str(steps), "--expert-ranks", str(expert_ranks), "--checkpoint", str(folder), *more]
        run_ranks("examples.train_moe", ranks, args=[*options, "--json", str(written)], timeout_s=400)
        losses += json.loads(written.read_text())
    whole = tmp_path / "whole.json"
    run_ranks("examples.train_moe", 1, args=["--steps", "5", "--whole", "--json", str(whole)], timeout_s=400)
    assert losses == pytest.approx(json.loads(whole.read_text()), abs=1e-8, rel=0)


@pytest.mark.nightly
@pytest.mark.parametrize("sharded", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize(("ranks", "expert_ranks"), [(4, 2), (2, 2), (2, 1)])
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_ended(tmp_path, ranks, expert_ranks, sharded):
    folder, losses = tmp_path / "checkpoint", []
    for part, (size, experts) in enumerate(((4, 2), (ranks, expert_ranks))):
        written = tmp_path / f"{part}.json"
        options = ["--steps", "4", "--expert-ranks", str(experts), "--checkpoint", str(folder), "--json", str(written)]
        run_ranks("examples.train_moe", size, args=[*options, *["--shard"] * sharded[part]], timeout_s=400)
        losses += json.loads(written.read_text())
    at_once = tmp_path / "at_once.json"
    run_ranks("examples.train_moe", 4, args=["--steps", "8", "--json", str(at_once)], timeout_s=400)
    assert losses == pytest.approx(json.loads(at_once.read_text()), abs=1e-8, rel=0)
