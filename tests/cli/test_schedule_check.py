"""``annopipe schedule check``, ``export`` and ``explain``: what they print, their exit codes, and the files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import annopipe as ap
from tests.cli.running import Result

Run = Callable[..., Result]

MISSING = """\
rank 1: 1B0 is missing; add 1B0 (or I and W of it)

            step 0   step 1
   rank 0   0F0      0B0
-> rank 1   1F0
"""
EXPLAINED = """\
rank 1, step 3, time 8: 1B0
B is the most urgent kind that may run; it is its turn
before, the rank was idle for 4: it waited for 2B0 of rank 2
  1B0  urgency 0  turn   0  ready
  1F3  urgency 1  turn   3  over the limit: 3 of 3 in flight; what is begun must
      be finished
urgency: the place of its kind in the priority B, F; turn: its place in the
rank's order of that kind

            step 0   step 1   step 2   step 3   step 4   step 5
   rank 0   0F0      0F1      0F2      0F3      0B0      0F4      ...
-> rank 1   1F0      1F1      1F2      1B0      1F3      1B1      ...
                                       ^
   rank 2   2F0      2F1      2B0      2F2      2B1      2F3      ...
   rank 3   3F0      3B0      3F1      3B1      3F2      3B2      ...
"""


@pytest.mark.parametrize("name", ap.schedules())
def test_every_schedule_of_the_library_passes(schedule: Run, name: str) -> None:
    result = schedule("check", name, "--rendezvous")
    assert result.returncode == 0
    assert result.stdout.startswith(f"{name} passes: 4 ranks, ")
    assert result.stdout.endswith(" actions with messages\n")


def test_check_prints_what_is_wrong_and_exits_with_1(schedule: Run, tmp_path: Path) -> None:
    (tmp_path / "half.csv").write_text("0F0,0B0\n1F0\n", encoding="utf-8")
    result = schedule("check", "half.csv")
    assert (result.returncode, result.stdout, result.stderr) == (1, MISSING, "")


def test_check_of_a_cell_that_is_no_action_fails_too(schedule: Run, tmp_path: Path) -> None:
    (tmp_path / "cell.csv").write_text("0F0,0B0 and more\n", encoding="utf-8")
    result = schedule("check", "cell.csv")
    assert result.returncode == 1
    assert result.stdout.startswith("cell.csv, row 1 (rank 0), column 2: ")


def test_check_limits_memory_in_the_units_of_the_costs(schedule: Run) -> None:
    assert schedule("check", "1f1b", "--memory", "4").returncode == 0
    refused = schedule("check", "1f1b", "--memory", "3")
    assert refused.returncode == 1
    assert refused.stdout.startswith("rank 0, step 3: 0F3 brings the activations kept to 4, and the limit is 3")
    assert schedule("check", "1f1b", "--memory", "3", "--costs", "activation=0.5").returncode == 0


def test_check_asks_for_rendezvous_only_when_told(schedule: Run, tmp_path: Path) -> None:
    crossed = (
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
    )
    (tmp_path / "crossed.csv").write_text(crossed, encoding="utf-8")
    assert schedule("check", "crossed.csv").returncode == 0
    refused = schedule("check", "crossed.csv", "--rendezvous")
    assert refused.returncode == 1
    assert "rank" in refused.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["1fb1"], 2, "did you mean 1f1b?"),
        (["gone.csv"], 2, "there is no file gone.csv"),
        (["chimera", "--ranks", "3"], 2, "need an even number of ranks"),
        (["1f1b", "--costs", "F=1"], 2, "--costs says what --memory counts: give both"),
        (["1f1b", "--memory", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["1f1b", "--memory", "9", "--costs", "activation=[1]"], 2, "activation has 1 entries"),
    ],
)
def test_check_says_what_is_wrong_with_the_command_line(
    schedule: Run, arguments: list[str], code: int, message: str
) -> None:
    result = schedule("check", *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("exported", "placement"),
    [
        (["gpipe"], []),
        (["1f1b"], ["--placement", "linear"]),
        (["interleaved-1f1b", "--chunks", "3"], ["--placement", "looped", "--chunks", "3"]),
        (["zbv"], ["--placement", "v"]),
        (["zbv"], []),
        (["wave"], ["--placement", "wave", "--chunks", "4", "--ranks", "4"]),
        (["dualpipe"], ["--placement", "bidirectional"]),
        (["distmm-pipe", "--towers", "1,2"], ["--placement", "towers", "--towers", "1,2"]),
    ],
    ids=lambda words: " ".join(words) or "rows",
)
def test_what_is_exported_passes_the_check(schedule: Run, exported: list[str], placement: list[str]) -> None:
    for lowered in ([], ["--lowered"], ["--lowered", "--parameters"]):
        assert schedule("export", *exported, "--csv", "a.csv", *lowered).returncode == 0
        result = schedule("check", "a.csv", *placement)
        assert result.returncode == 0, result.stdout
        assert ("with messages" in result.stdout) == bool(lowered)


def test_export_says_what_it_wrote_and_replaces_what_was_there(schedule: Run, tmp_path: Path) -> None:
    first = schedule("export", "1f1b", "--ranks", "2", "--microbatches", "1", "--csv", "new/a.csv").stdout
    assert first == "wrote new/a.csv: 2 rows, 4 actions, computation only\n"
    again = ("export", "new/a.csv", "--csv", "new/a.csv", "--lowered", "--parameters")
    assert schedule(*again).stdout == (
        "wrote new/a.csv, in place of what was there: 2 rows, 14 actions, with messages and parameter actions\n"
    )
    assert (tmp_path / "new" / "a.csv").read_text(encoding="utf-8").startswith("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,")


def test_export_writes_where_ranks_wait_when_it_is_asked_to(schedule: Run) -> None:
    naive = ("export", "1f1b", "--ranks", "2", "--microbatches", "1", "--lowered", "--waits", "--csv")
    rows = "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n"
    assert schedule(*naive, "-").stdout == rows
    assert schedule(*naive, "a.csv").stdout == "wrote a.csv: 2 rows, 8 actions, with messages, and waits\n"
    assert schedule("export", "a.csv", "--csv", "-").stdout == rows.replace(",0WAIT_SEND_F0", "").replace(
        ",1WAIT_SEND_B0", ""
    )
    alone = ("export", "1f1b", "--ranks", "1", "--microbatches", "1", "--lowered", "--waits", "--csv", "-")
    assert schedule(*alone).stdout == "0F0,0B0\n"


def test_export_says_how_to_read_stages_that_are_no_chain(schedule: Run) -> None:
    told = "The file does not say how stages follow each other: read it with --placement "
    assert f"{told}bidirectional\n" in schedule("export", "dualpipe", "--csv", "a.csv").stdout
    towers = schedule("export", "distmm-pipe", "--ranks", "7", "--towers", "1,2,3", "--csv", "a.csv").stdout
    assert f"{told}towers --towers 1,2,3\n" in towers
    assert told not in schedule("export", "wave", "--csv", "a.csv").stdout


def test_export_to_the_standard_output_prints_nothing_else(schedule: Run) -> None:
    result = schedule("export", "1f1b", "--ranks", "1", "--microbatches", "2", "--csv", "-")
    assert (result.stdout, result.stderr) == ("0F0,0B0,0F1,0B1\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b"], "Missing option '--csv'"),
        (["1f1b", "--csv", "a.csv", "--parameters"], "--parameters goes with --lowered"),
        (["1f1b", "--csv", "a.csv", "--waits"], "--waits goes with --lowered"),
        (["1f1b", "--csv", "."], "cannot write .: Is a directory; choose a file in a folder that can be written to"),
        (["gpip", "--csv", "a.csv"], "did you mean gpipe?"),
    ],
)
def test_export_says_what_is_wrong(schedule: Run, arguments: list[str], message: str) -> None:
    result = schedule("export", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_explain_prints_what_was_ready_and_why_one_won(schedule: Run) -> None:
    assert schedule("explain", "1f1b", "--rank", "1", "--step", "3").stdout == EXPLAINED


def test_explain_names_the_phase_of_an_exact_order(schedule: Run) -> None:
    lines = schedule("explain", "gpipe", "--rank", "0", "--step", "9").stdout.splitlines()
    assert lines[:3] == [
        "rank 0, step 9: 0B1",
        "the order is written in phases: this is step 2 of 8 of the phase 'm : B'",
        "",
    ]


def test_explain_keeps_what_was_chosen_among_many_that_are_ready(schedule: Run) -> None:
    asked = ("explain", "zb-h2", "--microbatches", "40", "--rank", "0", "--step", "8")
    text = schedule(*asked).stdout
    assert "  0W0  urgency 2  turn   0  ready\n" in text
    assert max(map(len, text.splitlines())) <= 80
    decision = json.loads(schedule(*asked, "--json").stdout)
    assert decision["chosen"] == "0W0"
    shown = sum(line.startswith("  0") for line in text.splitlines())
    assert f"  and {len(decision['candidates']) - shown} more; --json prints all\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "--rank", "4", "--step", "0"], "there is no rank 4; ranks are 0 to 3"),
        (["1f1b", "--rank", "0", "--step", "16"], "rank 0 has no step 16; its steps are 0 to 15"),
        (["gpipe", "--rank", "0", "--step", "16"], "rank 0 has no step 16; its steps are 0 to 15"),
        (["1f1b", "--rank", "0"], "Missing option '--step'"),
        (["a.csv", "--rank", "0", "--step", "0"], "a.csv is a file, which has actions and no specification"),
        (["zb-h3", "--rank", "0", "--step", "0"], "did you mean zb-h2 or zb-h1?"),
    ],
)
def test_explain_says_what_is_wrong(schedule: Run, arguments: list[str], message: str) -> None:
    result = schedule("explain", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_a_reader_that_stops_early_sees_no_traceback() -> None:
    command = [sys.executable, "-m", "annopipe", "schedule", "show", "1f1b", "--microbatches", "2000", "--grid"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("step")
        process.stdout.close()
        assert process.stderr.read() == ""


def test_export_and_explain_take_costs_only_to_make_the_order(schedule: Run) -> None:
    costs = ("--costs", "latency=0.05")
    usual, made = (
        schedule("export", "wave", "--csv", "-", *more).stdout for more in ((), (*costs, "--made-for-costs"))
    )
    assert usual != made
    explain = ("explain", "zb-h2", "--rank", "0", "--step", "7", *costs)
    assert schedule(*explain, "--made-for-costs").returncode == 0
    for refused in (("export", "wave", "--csv", "-", *costs), explain):
        assert "give --made-for-costs, too" in schedule(*refused).stderr
    assert "--made-for-costs: give the costs" in schedule("check", "wave", "--made-for-costs").stderr


def test_check_counts_the_memory_of_a_ranks_share(schedule: Run) -> None:
    assert schedule("check", "zbv", "--memory", "4").returncode == 0
    assert schedule("check", "zbv", "--memory", "4", "--per-stage").returncode == 1
