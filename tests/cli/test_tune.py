"""``annopipe tune``: the table, the account, the files, and what it refuses."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import annopipe as ap
from annopipe.cli import tuned
from annopipe.tuning.degrees import Degrees
from annopipe.tuning.run_config import RunConfig
from annopipe.workloads.shipped import MODELS
from tests.cli.running import Result

Run = Callable[..., Result]
WORK = """
[[workload]]
name = "head"
ranks = 3
microbatches = 6
layers = [{ repeat = 6, F = 1, I = 1, W = 1, activation = 1 }, { F = 3, I = 3, W = 3, activation = 1 }]
"""


@pytest.fixture(name="tune")
def _tune(annopipe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``annopipe tune`` on a file with one workload, quickly."""
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "work.toml").write_text(WORK)

    def run(*arguments: str) -> Result:
        return annopipe("tune", "work.toml", *arguments, "--effort", "20000", "--workers", "1", cwd=tmp_path)

    return run


def test_the_best_comes_first_and_the_library_is_named(tune: Run) -> None:
    result = tune("--best", "2")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("head: 3 ranks, 6 microbatches, bound ")
    assert "of the bound" in lines[2]
    assert sum("(library)" in line for line in lines) == 1
    assert any(re.match(r"layers of the best one's stages: 0(-\d+)? on rank", line) for line in lines)
    assert "units of the file" in lines[0]
    assert not re.search(r"\de-\d", result.stdout)  # what is left of differences is no time
    assert lines[-1].startswith("the step")
    assert lines[-1].endswith("x")


def test_times_of_a_model_have_units() -> None:
    found = ap.tune(ap.Workload((ap.Layer(F=1e-3, I=1e-3, W=1e-3, activation=2e9),) * 2, 2, 4), effort=2000, workers=1)
    of_a_model = [dataclasses.replace(candidate, degrees=Degrees(2)) for candidate in found]
    printed = "\n".join(tuned.lines(of_a_model, of_a_model[-1]))
    assert "ms" in printed.splitlines()[0]
    assert re.search(r"\d GB\b", printed)
    assert "units of the file" not in printed


def test_json_has_the_account_and_the_stages(tune: Run) -> None:
    found = json.loads(tune("--json", "--best", "1").stdout)
    best, library = found["found"]
    assert not best["library"]
    assert library["library"]
    assert best["makespan"] < library["makespan"]
    assert sum(best["account"].values()) == pytest.approx(best["makespan"])
    assert best["of_bound"] == pytest.approx(best["makespan"] / found["bound"])


def test_the_best_is_written_as_a_config_and_a_picture(tune: Run, tmp_path: Path) -> None:
    result = tune("--save", "out/run.toml", "--html", "out/run.html")
    assert result.stderr.splitlines() == ["wrote out/run.toml", "wrote out/run.html"]
    assert RunConfig.load(tmp_path / "out" / "run.toml").schedule.microbatches == 6
    assert "found: " in (tmp_path / "out" / "run.html").read_text()


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_search(
    tune: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("annopipe.tuning.tuner.tune", searched)
    for module in [name for name in sys.modules if name.startswith("annopipe.simulation.picture.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = tune("--png", str(tmp_path / "run.png"))
    assert result.returncode == 2
    assert "matplotlib is not installed" in result.stderr


def test_memory_that_is_too_little_says_how_much_would_do(tune: Run) -> None:
    result = tune("--memory", "1")
    assert result.returncode == 2
    assert "memory=1 is too little for any schedule: with one microbatch in flight" in result.stderr


def test_a_workload_that_is_not_in_the_file_is_named(tune: Run) -> None:
    result = tune("tail")
    assert (result.returncode, result.stdout) == (2, "")
    assert "has no workload 'tail'; it has head" in result.stderr


def test_a_config_of_another_kind_is_refused_before_the_search(tune: Run) -> None:
    result = tune("--save", "run.csv")
    assert (result.returncode, result.stdout) == (2, "")
    assert "run.csv: a config is TOML, give a name that ends in .toml" in result.stderr


CLUSTER = 'devices = 2\nmemory = 80e9\nmachine = "h100"\n[overrides]\nranks_per_node = 2\n'


def test_a_model_is_tuned_over_the_degrees_of_a_cluster(annopipe: Run, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(CLUSTER)
    options = ("--batch", "4", "--sequence", "256", "--microbatch-size", "1", "--effort", "2000", "--workers", "1")
    result = annopipe(
        "tune", "--model", "gpt-5b-32k", "--cluster", "two.toml", *options, "--memory", "2e11", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["found"]
    assert found[0]["degrees"]["ranks"] * found[0]["degrees"]["data"] == 2
    assert found[0]["step"] >= found[0]["makespan"] > 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a FILE.toml with workloads, or --model and --cluster"),
        (("work.toml", "--model", "gpt-5b-32k"), "give a FILE.toml with workloads, or --model and --cluster"),
        (("--model", "gpt-5b-32k"), "give --cluster"),
        (("--model", "gpt-6", "--cluster", "two.toml"), "there is no model 'gpt-6'"),
        (("work.toml", "--batch", "2"), "--batch is of a --model: leave it out"),
        (("work.toml", "--save", "folder.toml"), "cannot write folder.toml: it is a folder"),
        (("work.toml", "--html", "work.toml/run.html"), "work.toml is no folder"),
        (("work.toml", "--ranks", "2"), "has its degrees already: leave out ranks"),
    ],
)
def test_models_and_files_do_not_mix(annopipe: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "work.toml").write_text(WORK)
    (tmp_path / "two.toml").write_text(CLUSTER)
    (tmp_path / "folder.toml").mkdir()
    result = annopipe("tune", *arguments, "--effort", "2000", "--workers", "1", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "folder.csv").exists()


def test_the_help_names_all_models(annopipe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    shown = "".join(annopipe("tune", "--help").stdout.split())  # lines break within names
    assert [name for name in MODELS if name not in shown] == []
