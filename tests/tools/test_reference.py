"""The reference has every public name and every command, and Sphinx gets docstrings that it reads as they are meant."""

from types import ModuleType

import pytest

import annopipe as ap
import annopipe.models
import rewriters
from annopipe.cli import command as annopipe_command
from tools import reference
from tools.docstrings import as_sphinx_reads


def test_every_public_name_has_its_place():
    shown = [name.value for there in reference.names().values() for name in there]
    for module in (ap, ap.costs, ap.placement, annopipe.models):
        for name in module.__all__:
            value = getattr(module, name)
            assert isinstance(value, ModuleType) or sum(other is value for other in shown) == 1, name
    functions = [getattr(rewriters, name) for name in rewriters.__all__ if callable(getattr(rewriters, name))]
    assert all(function in shown for function in functions)


def test_every_command_has_its_help():
    found = dict(reference.commands())
    assert {f"annopipe {name}" for name in annopipe_command.list_commands(None)} <= set(found)
    assert "--microbatches" in found["annopipe schedule show"]
    assert all(text.startswith("Usage: annopipe") for text in found.values())


def test_pages_are_written_once_and_removed_with_their_names(tmp_path):
    (tmp_path / "gone.rst").write_text("")
    reference.write(tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert {"tags.rst", "costs.rst", "commands.rst", "index.rst"} <= set(written)
    assert "gone.rst" not in written
    reference.write(tmp_path)
    assert written == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


def test_names_of_a_package_that_nobody_has_entered_have_a_page(monkeypatch):
    monkeypatch.delitem(reference.PAGES, "tuning")
    assert "annopipe.Workload" in reference.pages()["tuning.rst"]
    assert "   tuning\n" in reference.pages()["index.rst"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["One line."], ["One line."]),
        (["kind: one word: two"], ["kind: one word: two"]),  # a sentence, since it is alone
        (["A.", "", "Args:", "    x: what", "", "    y: more"], ["A.", "", "Args:", "    x: what", "", "    y: more"]),
        (["A.", "", "    code"], ["A.", "", "::", "", "    code"]),
        (["a: b", "c: d"], ["Attributes:", "    a: b", "    c: d"]),
    ],
)
def test_docstrings_are_read_as_they_are_meant(written, read):
    assert as_sphinx_reads(written) == read
