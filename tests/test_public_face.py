"""The names of the public face exist, are listed, and come without importing more than they need."""

import subprocess
import sys
from pathlib import Path

import pytest

import annopipe as ap
from annopipe.errors import AnnopipeError


def test_every_listed_name_is_there() -> None:
    for name in ap.__all__:
        assert getattr(ap, name) is not None
    assert set(ap.__all__) <= set(dir(ap))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'overlapp'"):
        _ = ap.overlapp


def test_errors_inherit_from_one_base_and_a_fitting_builtin() -> None:
    for name in (
        "CaptureError",
        "GraphError",
        "OrderError",
        "ScheduleError",
        "CostError",
        "PipelineError",
        "RewriteError",
    ):
        error = getattr(ap, name)
        assert issubclass(error, AnnopipeError)
        assert issubclass(error, (ValueError, RuntimeError))


def test_importing_the_package_imports_no_torch() -> None:
    program = "import annopipe, annopipe.simulation, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_readme_has_no_placeholder() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert "_TABLE" not in text


def test_the_map_in_contributing_shows_every_package() -> None:
    root = Path(__file__).parents[1]
    (chapter,) = (root / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## The house\n")[1:]
    shown = {line.split()[0] for line in chapter.partition("\n## ")[0].splitlines() if line.startswith("    ")}
    packages = {
        path.parent for top in ("annopipe", "benchmarks", "rewriters") for path in root.glob(f"{top}/*/__init__.py")
    }
    rooms = {path.parent for package in packages for path in package.glob("*/__init__.py")}
    assert {f"annopipe/{path.name}/" for path in packages if path.parent.name == "annopipe"} <= shown
    assert {f"{path.name}/" for path in rooms | {p for p in packages if p.parent.name == "benchmarks"}} <= shown


def test_the_readme_and_the_changelog_know_every_policy() -> None:
    root = Path(__file__).parents[1]
    for name in ("README.md", "CHANGELOG.md"):
        text = (root / name).read_text(encoding="utf-8")
        assert [policy for policy in ap.policies() if f"`{policy}`" not in text] == []


def test_the_changelog_knows_every_public_name() -> None:
    text = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    functions = [name for name in ap.__all__ if name[0].islower() and name != "costs"]
    assert [name for name in functions if f"ap.{name}" not in text] == []
