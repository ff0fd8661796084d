"""The short examples on several ranks; tests/docs runs them in one process and compares what they print."""

import pytest

from benchmarks.launch import run_ranks


@pytest.mark.nightly
def test_nano_batches_of_two_ranks_are_eager():
    printed = run_ranks("examples.nano_batches", 2, timeout_s=400)
    assert "output and gradients are those of eager: True" in printed[0]
    assert printed[1] == ""


@pytest.mark.nightly
def test_two_ranks_train_under_the_schedule_that_the_first_one_finds(tmp_path):
    printed = run_ranks("examples.tune_and_train", 2, args=["--config", str(tmp_path / "run.toml")], timeout_s=400)
    (line,) = (line for text in printed for line in text.splitlines() if line.startswith("loss"))
    before, after = (float(word) for word in line.split() if word[0].isdigit() and "." in word)
    assert after < before
