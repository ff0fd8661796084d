"""Nano-batches on the command line: show, phases, compare and export with --nano-batches."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import annopipe as ap
from tests.cli.running import Result

Run = Callable[..., Result]

COSTS = "exposed={F=0.4,I=0.4},lanes={'F/2'=0.7,'B/2'=1.7,'I/2'=0.7}"
PAYS = ap.costs.table(exposed={"F": 0.4, "I": 0.4}, lanes={"F/2": 0.7, "B/2": 1.7, "I/2": 0.7})
COUNTS = ("--ranks", "2", "--microbatches", "2")
PHASES = """\
                    before                   after
rank  phase           time  hidden  exposed   time  hidden  exposed
0     warm-up          2 s     0 s   800 ms  1.4 s  600 ms   200 ms
      steady state     0 s     0 s      0 s    0 s     0 s      0 s
      cool-down        7 s     0 s   800 ms  5.8 s  600 ms   200 ms
1     warm-up          2 s     0 s   400 ms  1.4 s  300 ms   100 ms
      steady state     3 s     0 s   800 ms  2.4 s  600 ms   200 ms
      cool-down        4 s     0 s   400 ms  3.4 s  300 ms   100 ms
all   warm-up          4 s     0 s    1.2 s  2.8 s  900 ms   300 ms
      steady state     3 s     0 s   800 ms  2.4 s  600 ms   200 ms
      cool-down       11 s     0 s    1.2 s  9.2 s  900 ms   300 ms
after: 75% of the communication exposed in warm-up and cool-down is hidden

4 microbatches of a stage run as 2 nano-batches: the step takes 7.2 s instead of
9 s (-20.0%)
"""


def chosen(name: str = "1f1b") -> ap.Schedule:
    return ap.with_nano_batches(ap.schedule(name, 2, 2), PAYS)


def test_phases_prints_them_before_and_after(schedule: Run) -> None:
    assert schedule("phases", "1f1b", *COUNTS, "--costs", COSTS, "--nano-batches", "2").stdout == PHASES


def test_phases_of_one_schedule_stand_alone(schedule: Run) -> None:
    lines = schedule("phases", "1f1b", *COUNTS, "--costs", COSTS).stdout.splitlines()
    assert lines[0].split() == ["rank", "phase", "time", "hidden", "exposed"]
    assert len(lines) == 1 + 3 * 3


def test_phases_as_json_are_plain_data(schedule: Run) -> None:
    found = json.loads(schedule("phases", "1f1b", *COUNTS, "--costs", COSTS, "--nano-batches", "2", "--json").stdout)
    assert found["makespans"] == pytest.approx({"before": 9.0, "after": 7.2})
    assert found["hidden_shares"] == {"after": pytest.approx(0.75)}
    assert found["phases"]["after"][0]["exposed"] == pytest.approx(0.2)


def test_show_draws_the_lanes_and_says_what_was_tried(schedule: Run) -> None:
    text = schedule("show", "1f1b", *COUNTS, "--costs", COSTS, "--nano-batches", "2", columns=100).stdout
    assert "1f1b with nano-batches, 2 ranks" in text
    assert "/2 as 2 nano-batches" in text
    assert str(chosen().nano_batching) in text
    found = json.loads(schedule("show", "1f1b", *COUNTS, "--costs", COSTS, "--nano-batches", "2", "--json").stdout)
    assert found["nano_batching"]["after_s"] == pytest.approx(7.2)


def test_show_says_why_a_schedule_is_left_alone(schedule: Run) -> None:
    text = schedule("show", "1f1b", *COUNTS, "--nano-batches", "2").stdout
    assert "\nleft alone: nothing that was tried makes the step shorter than 9 s" in text
    refused = schedule("show", "1f1b", "--spec", "--nano-batches", "2")
    assert refused.returncode == 2


def test_compare_has_a_schedule_twice_where_that_pays_and_the_reason_where_not(schedule: Run) -> None:
    options = (*COUNTS, "--nano-batches", "2", "--json")
    found = json.loads(schedule("compare", "1f1b", "--costs", COSTS, *options).stdout)
    assert [row["name"] for row in found["schedules"]] == ["1f1b", "1f1b with nano-batches"]
    found = json.loads(schedule("compare", "1f1b", *options).stdout)
    assert [row["name"] for row in found["schedules"]] == ["1f1b"]
    assert found["left_out"][0]["name"] == "1f1b with nano-batches"
    assert found["left_out"][0]["reason"].startswith("left alone: ")


def test_export_writes_them(schedule: Run, tmp_path: Path) -> None:
    schedule("export", "1f1b", *COUNTS, "--costs", COSTS, "--nano-batches", "2", "--csv", "a.csv")
    assert ap.Schedule.from_csv(tmp_path / "a.csv") == chosen()
