"""Predicted against paced: from measured numbers to a workload and schedules, and what the table says of them."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import annopipe as ap
from annopipe.costs.fitting import Line
from benchmarks.calibration.choosing import candidates, workload
from benchmarks.calibration.command import command
from benchmarks.calibration.plan import Measured, Runs
from benchmarks.calibration.report import Row, ranking, table
from benchmarks.moe.case import MoeCase

CASE = MoeCase(layers=2, microbatches=8, network="loopback")
BLOCK = ap.Layer(2.0, 2.0, 2.0, activation=1.0, comm=9.0)
HEAD = dataclasses.replace(BLOCK, F=4.0, I=4.0, W=4.0)
MEASURED = Measured(
    exchange=Line(latency_s=0.5, bandwidth=CASE.transfer_bytes),
    issue_s=0.25,
    in_flight=2,
    send=Line(latency_s=0.125, bandwidth=2.0 * CASE.message_bytes),
    stretch_s=1.0,
    layers=(BLOCK, BLOCK, BLOCK, HEAD),
    seconds=10.0,
)


def test_a_workload_has_measured_blocks_and_the_transfers_of_the_calibration() -> None:
    work = workload(CASE, MEASURED)
    assert [layer.F for layer in work.layers] == [2.0, 2.0, 2.0, 4.0]
    assert {layer.comm for layer in work.layers} == {2 * (0.5 + 1.0 - 0.25)}
    assert (work.message, work.latency) == (0.5, 0.125)
    assert (work.ranks, work.microbatches) == (2, 8)


def test_the_library_and_the_search_give_schedules_to_run() -> None:
    chosen = candidates(workload(CASE, MEASURED), ("1f1b", "dualpipev"), found=3, effort=5000, seed=0)
    assert [bool(each.trial.rules.library) for each in chosen] == [True, True, False, False, False]
    assert [each.name for each in chosen[:2]] == ["1f1b", "dualpipev"]
    assert [each.trial.layout.placement.copies for each in chosen[2:]] == [1, 1, 2]
    assert chosen[2].timeline.makespan <= chosen[1].timeline.makespan
    assert len({each.trial.layout for each in chosen[2:]}) == 3, "different stages"


def test_a_schedule_that_the_library_does_not_have_is_refused() -> None:
    with pytest.raises(ap.CostError, match="no schedule 'fast' of the library fits"):
        candidates(workload(CASE, MEASURED), ("fast",), found=0, effort=1, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "fast"], "no schedule 'fast' of the library fits"),
        (["--json", "/dev/null/a.json"], "cannot write /dev/null/a.json: /dev/null is no folder"),
        (["--head", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(options: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["--network", "loopback", *options])
    assert result.exit_code != 0
    assert message in f"{result.output} {result.exception}"
    assert "calibrating" not in result.output


def test_what_ranks_are_told_survives_its_text_form() -> None:
    runs = Runs(CASE, MEASURED, {"1f1b": "1f1b.toml"})
    assert Runs.from_json(runs.to_json()) == runs


def test_the_table_says_how_far_off_and_which_pairs_are_predicted_the_other_way() -> None:
    rows = [
        Row("slow", True, 4.0, 5.0, (4.1, 4.2, 4.0)),
        Row("a", False, 2.0, 2.0, (2.3, 2.3, 2.4)),
        Row("b", True, 2.1, 2.0, (2.1, 2.1, 2.1)),
        Row("c", True, 2.2, 2.0, (2.15, 2.15, 2.15)),
    ]
    found = ranking(rows)
    assert found.spread == pytest.approx(0.2 / 4.1)
    assert (found.pairs, found.wrong) == (5, (("b", "a"), ("c", "a"))), "b and c do not differ by more than the spread"
    lines = table(rows).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["b", "c", "a", "slow"]
    assert lines[5].split() == ["slow", "(library)", "4000", "4100", "4000-4200", "1.025", "5000", "0.820"]
    assert lines[6] == "furthest from the prediction: 15.0%"
    assert lines[7].startswith("5 pairs differ by more than 4.9%, the largest spread; predicted so: 3")
    assert lines[7].endswith("; not b before a; not c before a")


@pytest.mark.nightly
def test_schedules_are_predicted_and_run_on_real_ranks(tmp_path: Path) -> None:
    path = tmp_path / "out" / "result.json"
    options = ["--network", "loopback", "--layers", "2", "--microbatches", "4", "--rounds", "1", "--effort", "3000"]
    result = CliRunner().invoke(
        command, [*options, "--schedule", "dualpipev", "--found", "2", "--json", str(path)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "gradients agree" in result.output
    found = json.loads(path.read_text())
    assert [row["library"] for row in found["rows"]] == [True, False, False]
    assert all(row["predicted_s"] > 0 < min(row["rounds_s"]) for row in found["rows"])
    assert found["gradients_differ"] == {}
    assert len(found["measured"]["layers"]) == 4
