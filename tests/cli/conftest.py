"""Run command lines in the process of the tests, which has torch imported already."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from annopipe.cli import main
from tests.cli.running import Result


@pytest.fixture(name="annopipe")
def _annopipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command line."""

    def run(*arguments: str, cwd: Path | None = None) -> Result:
        monkeypatch.setattr(sys, "path", [*sys.path])
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture(name="schedule")
def _schedule(
    annopipe: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Run ``annopipe schedule`` in an empty folder, for a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, columns: int = 80) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        result = annopipe("schedule", *arguments, cwd=tmp_path)
        assert "Traceback" not in result.stderr
        return result

    return run
