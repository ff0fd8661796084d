"""``annopipe bench kernels``: what does not go together is refused, and a file that cannot be written, too."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--quick"], "--quick says what --offline compiles: give both, or neither"),
        (["--target", "90", "--device", "cpu"], "--target says what --offline compiles: give both, or neither"),
        (["--offline", "--device", "cpu"], "--device says where to time, and --offline times nothing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(annopipe: Run, options: list[str], said: str) -> None:
    result = annopipe("bench", "kernels", *options)
    assert result.returncode == 2
    assert said in " ".join(result.stderr.split())


def test_times_are_written_into_a_folder_that_is_made(annopipe: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernels.json"
    assert annopipe("bench", "kernels", "--device", "cpu", "--json", str(path)).returncode == 0
    assert json.loads(path.read_text())[0]["name"] == "permute"


@pytest.mark.parametrize("command", ["kernels", "roofline", "overlap"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    annopipe: Run, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("mine")
    result = annopipe("bench", command, "--json", str(tmp_path / "file" / "a.json"))
    assert result.returncode == 2
    assert "file is no folder; choose a file in a folder that can be written to" in result.stderr
    assert result.stdout == ""
