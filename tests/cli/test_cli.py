"""The command line: help at once and without torch, region tables of real files, messages instead of tracebacks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from annopipe.cli import bench, schedule
from tests.cli.running import Result

MODEL = """
import torch
from torch import nn
import annopipe as ap

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        with ap.region("linear"):
            return self.linear(x)

def build():
    return Model(), (torch.ones(2, 4, requires_grad=True),)

def wrong():
    return 3

def fails():
    raise ValueError("not today")

def frozen():
    return nn.Tanh(), (torch.ones(2),)

number = 3

class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
"""


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    (tmp_path / "broken.py").write_text("undefined")
    return path


GROUPS = {"bench": bench.command, "schedule": schedule.command}
MEMBERS = [[name, member] for name, group in GROUPS.items() for member in group.list_commands(click.Context(group))]


@pytest.mark.parametrize(
    "command", [[], ["inspect"], ["doctor"], ["bench"], ["rewrite"], ["schedule"], *MEMBERS], ids=" ".join
)
def test_help_answers_without_importing_torch(command: list[str]) -> None:
    program = (
        "import sys, annopipe.cli\n"
        "try:\n"
        f"    annopipe.cli.main({[*command, '--help']!r})\n"
        "finally:\n"
        "    sys.exit(3 if {'torch', 'matplotlib'} & {*sys.modules} else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Usage:" in result.stdout


def test_inspect_prints_the_regions_of_a_file(annopipe: Callable[..., Result], model: Path) -> None:
    result = annopipe("inspect", f"{model}:build")
    assert result.returncode == 0, result.stderr
    assert "linear" in result.stdout
    assert "weight_grad" in result.stdout


TAGGED_BY_OTHERS = """
import torch
from torch.fx.traceback import annotate
from torch.utils.checkpoint import checkpoint

class Layer(torch.nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)

class Plain(torch.nn.Linear):
    def forward(self, x):
        with annotate({"EP": "compute"}):
            return super().forward(x)

layer, plain, bare = Layer(4, 4), Plain(4, 4), torch.nn.Linear(4, 4)
"""


def test_inspect_captures_checkpoints_knows_tags_of_others_and_says_when_there_are_none(
    annopipe: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(TAGGED_BY_OTHERS, encoding="utf-8")

    def inspect(name: str, *options: str) -> Result:
        return annopipe("inspect", f"{tmp_path / 'theirs.py'}:{name}", "--input", "2,4", "--graph", "forward", *options)

    assert inspect("layer").returncode == 0
    assert inspect("layer", "--strict").returncode == 0
    assert "has no tags" in inspect("bare").stderr
    theirs = inspect("plain")
    assert "has no tags" not in theirs.stderr
    tagged = [line.split() for line in theirs.stdout.splitlines() if line.startswith("moe/experts")]
    assert [len(row) for row in tagged] == [3], "region, phase and count: nothing is placed by rule"


def test_inspect_prints_nodes_and_json(annopipe: Callable[..., Result], model: Path) -> None:
    result = annopipe("inspect", f"{model}:Model", "--input", "2,4", "--graph", "backward", "--json")
    rows = json.loads(result.stdout)["backward"]
    assert {row["region"] for row in rows} == {"linear"}
    assert {row["phase"] for row in rows} == {"input_grad", "weight_grad"}
    table = annopipe("inspect", f"{model}:Model", "--input", "2,4", "--graph", "forward", "--nodes").stdout
    assert "addmm" in table


def test_inspect_shows_the_collectives_of_the_shipped_model(annopipe: Callable[..., Result]) -> None:
    rows = json.loads(annopipe("inspect", "annopipe.models:tiny_stage", "--json").stdout)["forward"]
    launches = [row["region"] for row in rows if row["kind"] == "launch"]
    assert launches == [f"block{n}/moe/{r}" for n in (0, 1) for r in ("dispatch", "dispatch", "combine")]


def test_inspect_reads_a_module_by_name(annopipe: Callable[..., Result]) -> None:
    assert annopipe("inspect", "torch.nn:Tanh", "--input", "2,3").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "write package.module:name or path/to/file.py:name"),
        (["no.such:thing"], "cannot import no.such"),
        (["gone.py:build"], "no Python file gone.py"),
        (["torch.nn:Nothing", "--input", "2"], "torch.nn has no Nothing"),
        (["torch.nn:Tanh"], "give an example input"),
        (["torch.nn:Tanh", "--input", "2,x"], "write a shape"),
        (["torch.nn:Tanh", "--input", "2:float99"], "write a shape"),
        (["torch.nn:Linear", "--input", "2"], "cannot be called without arguments"),
        (["MODEL:wrong"], "returned int"),
        (["MODEL:build", "--input", "2,4"], "returns its own example arguments"),
        (["MODEL:number"], "number is a int"),
        (["MODEL:fails"], "fails() failed: ValueError: not today, at"),
        (["broken.py:build"], "cannot import broken.py: NameError"),
        (["MODEL:frozen", "--graph", "backward"], "there is no backward"),
        (["MODEL:Branch", "--input", "2,4"], "cannot trace Branch"),
    ],
)
def test_inspect_says_what_is_wrong(
    annopipe: Callable[..., Result], arguments: list[str], message: str, model: Path
) -> None:
    result = annopipe("inspect", *(a.replace("MODEL", str(model)) for a in arguments), cwd=model.parent)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_names_what_is_there_and_what_is_missing(annopipe: Callable[..., Result]) -> None:
    found = {finding["what"]: finding for finding in json.loads(annopipe("doctor", "--json").stdout)}
    assert found["python"]["ok"]
    assert {"torch", "gloo", "rate-limited network", "GPU", "NCCL"} <= set(found)
    lines = annopipe("doctor").stdout.splitlines()
    assert lines[0].split() == ["what", "there", "detail"]
    assert lines[2].startswith("python")


def test_unknown_command_is_refused(annopipe: Callable[..., Result]) -> None:
    result = annopipe("dance")
    assert result.returncode == 2
    assert "No such command 'dance'" in result.stderr


def test_a_file_may_be_called_like_the_standard_library_and_import_its_neighbours(
    annopipe: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("from neighbour import build")
    (tmp_path / "neighbour.py").write_text(MODEL)
    result = annopipe("inspect", str(tmp_path / "json.py") + ":build", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["forward"]
