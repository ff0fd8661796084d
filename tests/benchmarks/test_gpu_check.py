"""The script for one GPU runs its checks, here without the ones that need a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pair.case import Case


@pytest.mark.slow
def test_the_checks_pass_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    options = ["--device", "cpu", "--json", str(path)]
    program = [sys.executable, "-m", "benchmarks.gpu_check", *options]
    result = subprocess.run(program, capture_output=True, text=True, check=False, timeout=400)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(path.read_text())
    assert [check["check"] for check in found["checks"]] == ["results", "costs", "stress"]
    assert all(check["detail"] in result.stdout for check in found["checks"])
    assert [row["name"] for row in found["pair"]["rows"]] == ["eager", *Case.policies]
