import subprocess
import sys

import pytest


def netlab(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.netlab", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.root
def test_run_starts_the_command_on_every_rank() -> None:
    done = netlab(
        "run", "--ranks", "2", "--rate", "100mbit", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE by $MASTER_ADDR"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["0: 0 of 2 by 10.77.0.1", "1: 1 of 2 by 10.77.0.1"]


@pytest.mark.root
def test_run_reports_a_failing_rank() -> None:
    done = netlab("run", "--", "sh", "-c", "test $RANK = 0 || { echo broken >&2; exit 4; }")
    assert done.returncode == 1
    assert done.stderr.startswith("error: sh: rank 1 of 2 failed")
    assert "rank 1 exited with code 4; the end of its standard error:\n    broken" in done.stderr


@pytest.mark.root
def test_available_and_sweep_answer() -> None:
    assert netlab("available").stdout == "network labs work here\n"
    assert netlab("sweep").returncode == 0


def test_a_bad_rate_is_one_line_and_no_traceback() -> None:
    done = netlab("run", "--rate", "fast", "--", "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: rate='fast': give a positive number and one of kbit, mbit, gbit, such as '400mbit'\n"
