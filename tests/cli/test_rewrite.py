"""``annopipe rewrite``: what it prints and writes, its exit codes, and the options of pyproject.toml."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from annopipe.cli.rewrite import command
from rewriters import RULES
from rewriters.anchors import ROLES
from tests.cli.running import Result

Run = Callable[..., Result]

MODEL = """\
class Block(Module):
    def forward(self, x):
        y = self.experts(x)
        if y is None: return self.combine(y)
        return y
"""
TAGGED = MODEL.replace(
    "        y = self.experts(x)\n", '        with annopipe.region("experts"):\n            y = self.experts(x)\n'
)
DIFF = """\
--- a/model.py
+++ b/model.py
@@ -1,5 +1,7 @@
+import annopipe
 class Block(Module):
     def forward(self, x):
-        y = self.experts(x)
+        with annopipe.region("experts"):
+            y = self.experts(x)
         if y is None: return self.combine(y)
         return y
"""


@pytest.fixture(name="rewrite")
def _rewrite(annopipe: Run, tmp_path: Path) -> Run:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")

    def run(*arguments: str) -> Result:
        result = annopipe("rewrite", *arguments, cwd=tmp_path)
        assert "Traceback" not in result.stderr
        return result

    return run


def test_the_default_shows_a_diff_names_refusals_and_writes_nothing(rewrite: Run, tmp_path: Path) -> None:
    result = rewrite("model.py")
    assert (result.returncode, result.stdout) == (1, DIFF)
    assert "model.py:4: AP103 combine: self.combine: refused (on the line of its if" in result.stderr
    assert "1 files, 1 to change: 1 wrapped, 1 refused" in result.stderr
    assert (tmp_path / "model.py").read_text(encoding="utf-8") == MODEL


def test_check_names_the_files_and_a_clean_file_exits_with_0(rewrite: Run, tmp_path: Path) -> None:
    result = rewrite("--check", ".")
    assert (result.returncode, result.stdout) == (1, "model.py: 1 place to change\n")
    (tmp_path / "model.py").write_text("x = 1\n", encoding="utf-8")
    assert rewrite("--check", ".").returncode == 0


def test_write_writes_and_strip_gives_the_bytes_back(rewrite: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.chmod(0o640)
    assert rewrite("model.py", "--write").returncode == 0
    assert path.read_text(encoding="utf-8") == f"import annopipe\n{TAGGED}"
    assert path.stat().st_mode & 0o777 == 0o640
    assert "1 already" in rewrite("model.py", "--write", "--exit-non-zero-on-change").stderr
    assert rewrite("model.py", "--select", "AP301", "--write", "--exit-non-zero-on-change").returncode == 1
    assert path.read_text(encoding="utf-8") == MODEL
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.py"]


def test_json_has_a_record_per_site(rewrite: Run) -> None:
    records = json.loads(rewrite("model.py", "--format", "json").stdout)
    assert [(r["line"], r["rule"], r["role"], r["action"]) for r in records] == [
        (3, "AP102", "experts", "wrapped"),
        (4, "AP103", "combine", "refused"),
    ]
    keys = {"path", "line", "end_line", "rule", "role", "anchor", "action", "reason", "covers"}
    assert [set(record) for record in records] == [keys, keys]
    assert [record["covers"] for record in records] == ["call", ""]


def test_standard_input_is_rewritten_to_standard_output(rewrite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MODEL.encode())))
    result = rewrite("-", "--stdin-filename", "model.py")
    assert result.stdout == DIFF


def test_a_file_that_cannot_be_parsed_exits_with_2_and_the_others_are_done(rewrite: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("self.experts(\n", encoding="utf-8")
    result = rewrite(".", "--write")
    assert result.returncode == 2
    assert "broken.py: line" in result.stderr
    assert "annopipe" in (tmp_path / "model.py").read_text(encoding="utf-8")


def test_a_file_is_rewritten_once_whatever_leads_to_it(rewrite: Run, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.py").symlink_to(tmp_path / "model.py")
    (tmp_path / "folder" / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(tmp_path / "folder" / "pipe.py")
    result = rewrite("model.py", "folder/../model.py", str(tmp_path / "model.py"), "folder", "--write")
    assert (result.returncode, result.stderr.splitlines()[-1]) == (0, "1 files, 1 changed: 1 wrapped, 1 refused")
    assert (tmp_path / "folder" / "link.py").is_symlink()
    assert "annopipe" in (tmp_path / "model.py").read_text(encoding="utf-8")


def test_a_read_only_file_stays_as_it_is_and_the_others_are_done(rewrite: Run, tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "first.py").chmod(0o444)
    result = rewrite(".", "--write")
    assert result.returncode == 2
    assert "first.py: is read-only: make it writable, or leave it out" in result.stderr
    assert "2 files, 1 changed" in result.stderr
    assert (tmp_path / "first.py").read_text(encoding="utf-8") == MODEL
    assert "annopipe" in (tmp_path / "model.py").read_text(encoding="utf-8")


def test_a_folder_without_python_files_is_nothing_to_do(rewrite: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert rewrite("empty").returncode == 0


def test_an_interrupted_write_leaves_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rewriters.files import write

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a.py").write_bytes(b"x = 1\n")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.py", b"x = 1\n", b"x = 2\n")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a.py", b"x = 1\n")]


def test_options_come_from_pyproject(rewrite: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.annopipe.rewrite]\n"
        'import-style = "names"\nexclude = ["*old*"]\n'
        '[tool.annopipe.rewrite.anchors]\ndispatch = [{name = "self.mine.send", needs = ["experts"]}]\n'
        '[tool.annopipe.rewrite.per-file-ignores]\n"mod*" = ["AP103"]\n',
        encoding="utf-8",
    )
    (tmp_path / "old.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "model.py").write_text(MODEL + "    def send(self, x):\n        self.mine.send(x)\n", encoding="utf-8")
    result = rewrite("model.py", "old.py", "--write")
    assert "2 wrapped, 0 refused" in result.stderr
    text = (tmp_path / "model.py").read_text(encoding="utf-8")
    assert text.startswith("from annopipe import comm, region\n")
    assert 'with comm("dispatch"):\n            self.mine.send(x)' in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name files or folders"),
        (["gone.py"], "no such file or folder: gone.py"),
        (["model.py", "--check", "--write"], "exclude each other"),
        (["model.py", "--select", "AP9"], "no rule 'AP9'"),
        (["model.py", "--select", "AP401"], "it needs --unsafe"),
        (["model.py", "--extent", "call"], "it needs --unsafe"),
        (["model.py", "--select", "AP301,AP102"], "AP301 undoes other rules"),
        (["model.py", "--vocabulary", "esperanto"], "no vocabulary 'esperanto'"),
        (["model.py", "--config", "gone.toml"], "no such file: gone.toml"),
        (["model.py", "-"], "- stands alone"),
        (["--explain", "AP9"], "no rule 'AP9'"),
    ],
)
def test_misuse_is_one_message_and_exit_code_2(rewrite: Run, arguments: list[str], message: str) -> None:
    result = rewrite(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('colour = "red"', "no option 'colour'"),
        ("select = 3", "select must be a list of strings"),
        ("unsafe = true", "no option 'unsafe'"),
        ('include-generated = "yes"', "include-generated must be a bool"),
        ('anchors = ["self.x"]', "anchors must be a table of lists"),
        ('anchors.router = "self.x"', "anchors.router must be a list"),
        ("anchors.router = [3]", "anchors.router must be names, or {name"),
        ('anchors.sender = ["self.x"]', "no role 'sender'"),
        ('anchors.router = [".permute"]', "anchors.router must be dotted names"),
        ('extent = "file"', "extent 'file'"),
        ('import-style = "wild"', "import-style 'wild'"),
        ("nano-batches = 1", "nano-batches 1: at least 2"),
        ("= 3", "pyproject.toml"),
    ],
)
def test_what_pyproject_cannot_say_is_refused(rewrite: Run, tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.annopipe.rewrite]\n{table}\n", encoding="utf-8")
    result = rewrite("model.py")
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [("tool = 3", "tool"), ("tool.annopipe = 3", "annopipe"), ("tool.annopipe.rewrite = 3", "rewrite")],
)
def test_a_table_that_is_none_is_refused(rewrite: Run, tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"{text}\n", encoding="utf-8")
    result = rewrite("model.py")
    assert result.returncode == 2
    assert f": {name} of [tool.annopipe.rewrite] must be a table" in result.stderr


def test_rules_are_listed_and_explained(rewrite: Run) -> None:
    listing = rewrite("--list").stdout
    assert [line.split()[0] for line in listing.splitlines()] == sorted(RULES)
    for code in RULES:
        page = rewrite("--explain", code).stdout
        assert page.startswith(code)
    assert "self.router" in rewrite("--explain", "AP105").stdout


def test_the_roles_of_the_command_are_those_of_the_rules() -> None:
    (role,) = (parameter for parameter in command.params if parameter.name == "role")
    assert isinstance(role.type, click.Choice)
    assert set(role.type.choices) == set(ROLES)


def test_many_files_go_over_several_processes(rewrite: Run, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"more_{number}.py").write_text(MODEL, encoding="utf-8")
    assert "6 files, 6 changed: 6 wrapped" in rewrite(".", "--write", "-j", "2").stderr


def test_patch_lists_become_tags_in_another_file(rewrite: Run, tmp_path: Path) -> None:
    patches = "from torch.fx.traceback import annotate_fn\n\n\ndef patch():\n    from model import Block\n\n"
    for name in ("Block.forward", "Gone.forward"):
        patches += f'    {name} = annotate_fn({{"EP": "compute"}})({name})\n'
    (tmp_path / "patches.py").write_text(patches, encoding="utf-8")
    result = rewrite(".", "--select", "AP404", "--write")
    assert "no class Gone with forward among the files" in result.stderr
    assert '    @annopipe.region("moe")\n    def forward' in (tmp_path / "model.py").read_text(encoding="utf-8")
    left = (tmp_path / "patches.py").read_text(encoding="utf-8")
    assert "Block.forward =" not in left
    assert "Gone.forward =" in left
    assert rewrite(".", "--select", "AP404", "--check").returncode == 0


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    from annopipe.errors import RewriteError
    from rewriters.files import write

    (tmp_path / "a.py").write_bytes(b"x = 1\n")
    with pytest.raises(RewriteError, match="has changed since it was read"):
        write(tmp_path / "a.py", b"x = 0\n", b"x = 2\n")
    assert (tmp_path / "a.py").read_bytes() == b"x = 1\n"
