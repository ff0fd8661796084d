"""``annopipe bench rewrite`` times files and says what of it is libcst's."""

import json

from click.testing import CliRunner

from benchmarks.rewriting import command


def test_files_are_timed_and_none_is_written(tmp_path):
    text = "class Block:\n    def forward(self, x):\n        return self.experts(x)\n"
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(text)
    (tmp_path / "c.py").write_text("x = 1\n")
    arguments = [str(tmp_path), "--calling", "self.experts(", "-j", "1", "--check"]
    result = CliRunner().invoke(command, [*arguments, "--json"], standalone_mode=False)
    found = json.loads(result.output)
    assert (result.return_value, found["files"], found["sites"]) == (0, 2, 2)
    assert found["parse_share"] > 0
    assert (tmp_path / "a.py").read_text() == text
    assert "of it positions" in CliRunner().invoke(command, arguments, standalone_mode=False).output


def test_a_folder_without_files_is_refused(tmp_path):
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert result.exit_code == 2
    assert "no Python file there" in result.output
