"""The overlap job on real ranks: bitwise equal everywhere, one table, plain data, and messages for what cannot run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from annopipe.errors import CostError
from benchmarks.overlap import command
from benchmarks.pair.case import Case
from benchmarks.pair.report import label, table

SMALL = ["--sequence", "16", "--rounds", "1"]


def _run(tmp_path: Path, *options: str) -> tuple[str, list[dict]]:
    output = ["--json", str(tmp_path / "result.json"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command, [*SMALL, *options, *output], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output, json.loads((tmp_path / "result.json").read_text())["cases"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_policy_is_bitwise_equal_to_eager_on_real_ranks(ranks: int, tmp_path: Path) -> None:
    text, (case,) = _run(tmp_path, "--ranks", str(ranks), "--blocks", "1", "--real", "--network", "loopback")
    assert case["ranks"] == ranks
    assert case["bitwise_equal"]
    assert [row["name"] for row in case["rows"]] == ["eager", "sequential", "alternate", "list"]
    assert "all results bitwise equal to eager" in text
    assert (tmp_path / "out" / "real-1" / "timeline.html").is_file()


def test_paced_and_emulated_times_are_labelled_so(tmp_path: Path) -> None:
    text, (case,) = _run(tmp_path, "--blocks", "1", "--paced", "--network", "emulated", "--policy", "sequential")
    (row,) = case["rows"]
    assert "paced, emulated" in text
    assert case["computation_s"] == pytest.approx(case["communication_s"], rel=0.05)
    assert row["measured_s"] >= 0.9 * row["simulated_s"], (
        "a paced run cannot be faster than its computation and messages"
    )


@pytest.mark.root
def test_ranks_in_network_namespaces_leave_nothing_behind(tmp_path: Path) -> None:
    before = sorted(Path("/run/netns").iterdir()) if Path("/run/netns").is_dir() else []
    _, (case,) = _run(tmp_path, "--blocks", "1", "--paced", "--network", "namespaces")
    assert case["bitwise_equal"]
    assert (sorted(Path("/run/netns").iterdir()) if Path("/run/netns").is_dir() else []) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--blocks", "0"], "'0' is not a positive number"),
        (["--blocks", "x"], "'x' is not a positive number"),
        (["--ranks", "0"], "0 is not in the range"),
        (["--rate", "fast"], "fast"),
        (["--network", "radio"], "'radio' is not one of"),
        (["--policy", "lst", "--network", "loopback"], "no overlap policy 'lst'"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(options: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [*SMALL, *options, "--output", str(tmp_path)])
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks": 0}, "blocks=0: give at least 1"),
        ({"network": "radio"}, "network 'radio' is not one of"),
        ({"rate_bytes_per_s": 0.0}, "the rate is positive"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(CostError, match=message):
        Case(**fields)


def test_a_case_survives_its_text_form() -> None:
    case = Case(blocks=3, paced=True, policies=("list",))
    assert Case.from_json(case.to_json()) == case


def test_wrong_results_are_shown_in_the_table() -> None:
    case = json.loads(Case().to_json())
    row = {
        "name": "list",
        "measured_s": 1.0,
        "fastest_s": 0.9,
        "slowest_s": 1.1,
        "simulated_s": 1.0,
        "hidden_share": 0.5,
    }
    times = dict.fromkeys(("bound_s", "computation_s", "communication_s"), 1.0)
    text = table(
        [{"case": case, "ranks": 2, "bitwise_equal": False, "wrong": {"list": ["output"]}, "rows": [row], **times}]
    )
    assert "WRONG RESULTS: {'list': ['output']}" in text
    assert label(case) == "measured"
