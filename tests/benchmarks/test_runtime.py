"""The runtime job on real ranks: both runtimes run the same schedules, one row for each."""

import json

import pytest
from click.testing import CliRunner

from annopipe.cli.bench import command as bench
from annopipe.errors import AnnopipeError
from benchmarks.eager_names import SENDS_TO_ITSELF
from benchmarks.runtime.command import command

compared = pytest.mark.skipif(SENDS_TO_ITSELF, reason="PyTorch 2.11 sends from a rank to itself, which gloo cannot do")


@pytest.mark.skipif(not SENDS_TO_ITSELF, reason="this PyTorch runs all of them")
def test_schedules_that_pytorch_cannot_run_over_gloo_are_refused() -> None:
    with pytest.raises(AnnopipeError, match="sends from a rank to itself in zbv, dualpipev, which gloo cannot do"):
        CliRunner().invoke(command, ["--ranks", "2"], catch_exceptions=False)


@compared
@pytest.mark.parametrize("ranks", [1, 2])
def test_both_runtimes_have_a_time_per_action(ranks: int) -> None:
    options = ["--ranks", str(ranks), "--microbatches", "4", "--rounds", "1", "--json"]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    rows = json.loads(result.output)["rows"]
    assert [row["schedule"] for row in rows] == ["interleaved-1f1b", "zbv", "dualpipev"]
    for row in rows:
        for runtime in ("annopipe", "upstream"):
            times = row[runtime]
            assert 0 < times["fastest_s"] <= times["median_s"] <= times["slowest_s"]
            assert times["processor_s"] > 0


@compared
def test_the_table_says_what_was_measured() -> None:
    options = [
        "--ranks",
        "1",
        "--microbatches",
        "4",
        "--rounds",
        "1",
        "--schedule",
        "zbv",
        "--parameters",
        "2",
        "--parameters",
        "8",
    ]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    first, *_, before, last = result.output.splitlines()
    assert first.startswith("4 microbatches; us per compute action, median of 1")
    assert before.split()[:4] == ["1", "zbv", "2", "24"]
    assert last.split()[:4] == ["1", "zbv", "8", "24"]


def test_the_command_is_a_member_of_bench() -> None:
    assert "runtime" in CliRunner().invoke(bench, ["--help"]).output
