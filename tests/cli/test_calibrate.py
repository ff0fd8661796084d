"""``annopipe calibrate``: what it writes is what the tuner and the cost model read, and what it refuses."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import annopipe as ap
from tests.cli.running import Result

Run = Callable[..., Result]
MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)), (torch.randn(16, 32),)

class Sent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.group = nn.Linear(32, 32), torch.distributed.group.WORLD
        self.ranks = torch.distributed.get_world_size()

    def forward(self, x):
        rows = torch.distributed._functional_collectives.all_to_all_single_autograd(x, None, None, self.group)
        return self.layer(rows)

def communicating():
    return Sent(), (torch.randn(16, 32),)
"""


@pytest.mark.nightly
def test_a_machine_and_a_model_are_measured_and_written(annopipe: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    files = ["--save", "out/machine.toml", "--workload", "out/work.toml"]
    model = ["--model", "model.py:make", "--at", "1", "--at", "2", "--microbatches", "4"]
    result = annopipe("calibrate", "--device", "cpu", *model, *files, "--json", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr.splitlines()[0] == "measuring the device"
    assert result.stderr.splitlines()[-2:] == ["wrote out/machine.toml", "wrote out/work.toml"]
    plain = json.loads(result.stdout)
    hardware = ap.costs.Hardware.from_toml(tmp_path / "out" / "machine.toml")
    assert hardware.inside.bandwidth == plain["messages"][0]["line"]["bandwidth"]
    work = ap.Workload.from_toml(tmp_path / "out" / "work.toml")
    assert (work.name, work.ranks, work.microbatches) == ("make", 2, 4)
    assert [layer.F for layer in work.layers] == pytest.approx([layer["F"] for layer in plain["layers"]], rel=1e-3)
    assert work.message == pytest.approx(16 * 64 * 4 / hardware.inside.bandwidth, rel=1e-3)
    assert ap.tune(work, effort=1000, workers=1)[0].timeline.makespan > 0


@pytest.mark.nightly
def test_layers_may_communicate_and_be_fewer_than_the_ranks_where_no_workload_is_wanted(
    annopipe: Run, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    options = ["--model", "model.py:communicating", "--ranks-per-node", "1", "--json"]
    result = annopipe("calibrate", "--device", "cpu", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    plain = json.loads(result.stdout)
    (layer,) = plain["layers"]
    assert layer["comm"] > 0.0
    assert {each["where"] for each in plain["messages"]} == {"between"}
    # Ranks that are said to be nodes still share the memory of this machine.
    assert plain["memory"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "work.toml"], "--workload holds the layers of a model: say which with --model"),
        (["--workload", "w.toml", "--model", "m:m"], "--workload needs layers: say where they begin with --at"),
        (["--nproc", "1"], "1 is not in the range x>=2"),
        (["--at", "layers.1"], "--at is of a model: say which with --model"),
        (["--input", "2,2"], "--input is of a model: say which with --model"),
        (["--microbatches", "4"], "--microbatches is of a workload: say where to write it with --workload"),
        (["--pipeline-ranks", "4", "--model", "m:m"], "--pipeline-ranks is of a workload"),
        (["--model", "m:m", "--at", "1", "--workload", "a", "--save", "./a"], "are both ./a: give a file to each"),
        (
            ["--model", "m:m", "--at", "1", "--workload", "a.toml", "--pipeline-ranks", "3"],
            "--at makes 2 layers, fewer than 3 pipeline ranks: give more of them, or --pipeline-ranks",
        ),
        (["--device", "cpu", "--save", "/dev/null/a.toml"], "cannot write /dev/null/a.toml: /dev/null is no folder"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(annopipe: Run, arguments: list[str], message: str) -> None:
    result = annopipe("calibrate", *arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_gpu_that_is_not_there_is_refused(annopipe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "there is no GPU here: leave --device out" in annopipe("calibrate", "--device", "cuda").stderr
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "--nproc 2, and there are 1 GPUs" in annopipe("calibrate", "--nproc", "2").stderr
    assert "one rank has no links to measure: start 2 or more" in annopipe("calibrate").stderr


def test_under_torchrun_ranks_are_not_started_again(annopipe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "torchrun has started some: leave it out" in annopipe("calibrate", "--nproc", "2").stderr
    assert "one rank has no links to measure" in annopipe("calibrate", "--device", "cpu").stderr


def test_a_model_that_is_not_there_is_named_by_a_rank(annopipe: Run, tmp_path: Path) -> None:
    result = annopipe("calibrate", "--device", "cpu", "--model", "nothing.py:make", cwd=tmp_path)
    assert result.returncode == 2
    assert "no Python file nothing.py" in result.stderr
    assert "measuring" not in result.stderr
