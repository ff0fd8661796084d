"""The script for one GPU: its checks run here without a GPU, and what breaks does not hide the rest."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import __main__ as script
from benchmarks.launch import LaunchError
from benchmarks.pair.case import Case

WITHOUT_GPU = {
    "alone": [
        "host reads",
        "random numbers, direct",
        "random numbers, strict",
        "checkpoint, strict",
        "autocast, direct",
    ],
    "kernels": [
        "results, bfloat16",
        "results, float16",
        "results, float32",
        "tiles",
        "multiprocessors",
        "stress",
        "times",
    ],
    "captured": ["captured", "runs", "compiled"],
    "experts": ["tiny, direct", "tiny, strict", "skewed routing", "measured costs", "planning"],
    "copies": ["results", "costs", "stress"],
}


@pytest.mark.slow
def test_the_checks_pass_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    options = ["--device", "cpu", "--json", str(path)]
    program = [sys.executable, "-m", "benchmarks.gpu_check", *options]
    result = subprocess.run(program, capture_output=True, text=True, check=False, timeout=400)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(path.read_text())
    checks = {group: [c["check"] for c in found["checks"] if c["group"] == group] for group in WITHOUT_GPU}
    assert checks == WITHOUT_GPU
    assert all(check["detail"] in result.stdout for check in found["checks"])
    assert f"torch {torch.__version__}" in result.stdout
    assert found["machine"]["torch"] == torch.__version__
    assert [row["name"] for row in found["pair"]["rows"]] == ["eager", *Case.policies]


def run_with(monkeypatch: pytest.MonkeyPatch, path: Path, ranks: Any, *options: str) -> tuple[Any, dict[str, Any]]:
    """The script with another function in place of ``run_ranks``: its exit code, and what it wrote."""
    monkeypatch.setattr(script, "run_ranks", ranks)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--json", str(path), *options])
    code = None
    try:
        script.main()
    except SystemExit as end:
        code = end.code
    return code, json.loads(path.read_text())


def result_line(group: str, *, ok: bool = True) -> str:
    check = {"group": group, "check": "sum", "ok": ok, "seconds": 0.1, "detail": "1 + 1 is 2", "figures": {}}
    return "result:" + json.dumps(check)


def test_a_group_that_crashes_keeps_what_it_has_found_and_the_other_groups_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ranks(_module: str, _ranks: int, *, args: list[str], on_line: Any, timeout_s: float) -> None:
        assert timeout_s > 0
        on_line(0, 'machine:{"torch": "9.9", "card": "NVIDIA H200"}')
        on_line(0, result_line(args[0]))
        on_line(0, "a line that a library printed")
        if args[0] == "experts":
            raise LaunchError("worker: rank 0 of 1 failed\n    ...\n    CUDA error: an illegal memory access")

    code, found = run_with(monkeypatch, tmp_path / "found.json", ranks)
    assert code == 1
    assert [(c["group"], c["check"], c["ok"]) for c in found["checks"]] == [
        ("alone", "sum", True),
        ("kernels", "sum", True),
        ("captured", "sum", True),
        ("experts", "sum", True),
        ("experts", "(process)", False),
        ("copies", "sum", True),
    ]
    printed = capsys.readouterr().out
    assert "worker: rank 0 of 1 failed; CUDA error: an illegal memory access" in printed
    assert "card NVIDIA H200" in printed


def test_groups_get_what_is_left_of_the_time_and_are_not_run_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits: list[float] = []

    def ranks(_module: str, _ranks: int, *, args: list[str], on_line: Any, timeout_s: float) -> None:
        limits.append(timeout_s)
        on_line(0, result_line(args[0]))
        monkeypatch.setattr(script, "_BUDGET_S", 0.0)

    code, found = run_with(monkeypatch, tmp_path / "found.json", ranks, "--group", "copies", "--group", "alone")
    assert code == 1
    assert limits == [script._TIMES_ON_CPU * script._LIMITS_S["copies"]]
    assert found["checks"][-1]["detail"] == "not run: the time budget was spent"


def test_a_check_that_failed_fails_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ranks(_module: str, _ranks: int, *, args: list[str], on_line: Any, timeout_s: float) -> None:
        on_line(0, result_line(args[0], ok=args[0] != "copies" or timeout_s < 0))

    code, found = run_with(monkeypatch, tmp_path / "found.json", ranks)
    assert code == 1
    assert [check["ok"] for check in found["checks"]] == [True, True, True, True, False]


def test_without_a_gpu_the_script_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "no GPU here" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_any_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_arguments: object, **_options: object) -> None:
        pytest.fail("a group ran")

    monkeypatch.setattr(script, "run_ranks", never)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--json", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    assert "it is a folder; choose a file" in capsys.readouterr().err
