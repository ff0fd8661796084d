"""The benchmark of schedules times each step of each schedule."""

import json
import subprocess
import sys

from click.testing import CliRunner

from annopipe.scheduling.library import schedule
from benchmarks.schedules import command

SMALL = ["--ranks", "2", "--microbatches", "4", "--rounds", "2"]


def test_every_step_of_every_schedule_is_timed_in_every_round() -> None:
    options = [*SMALL, "--schedule", "gpipe", "--schedule", "zb-h1", "--json"]
    found = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).output)
    assert [row["name"] for row in found["schedules"]] == ["gpipe", "zb-h1"]
    for row in found["schedules"]:
        assert {len(row[step]) for step in ("build", "lower", "check", "simulate", "both")} == {2}
        lowered = schedule(row["name"], 2, 4).lowered()
        assert row["lowered_actions"] == sum(map(len, lowered.ranks))


def test_the_table_has_a_row_for_a_busy_a_split_and_a_serial_schedule() -> None:
    lines = CliRunner().invoke(command, SMALL, catch_exceptions=False).output.splitlines()
    assert lines[0] == "2 ranks, 4 microbatches; seconds, median of 2, measured"
    assert [line.split()[0] for line in lines[3:]] == ["1f1b", "zb-h1", "naive"]


def test_it_needs_no_torch() -> None:
    program = "import benchmarks.schedules, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
