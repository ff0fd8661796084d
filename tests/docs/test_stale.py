"""What pages say of commands, messages and programs is there in the code."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

from annopipe.cli import command as annopipe_command
from tools.make_docs import DOCS
from tools.reference import commands

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("how_to/*.md"))]


def command_lines(page: Path) -> list[str]:
    """Lines of blocks, and code within a line, that begin with annopipe; without the explanation beside them."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^(?:    |\$ )(annopipe .*)$", text, re.MULTILINE) + re.findall(r"`(annopipe [^`\n]+)`", text)
    return [re.split(r"  +| #", line)[0] for line in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_command_lines_on_a_page_name_commands_and_options_that_exist(page):
    for line in command_lines(page):
        command: click.Command = annopipe_command
        words = shlex.split(line)[1:]
        context = click.Context(command)
        while isinstance(command, click.Group) and words and words[0][0] not in "-.":
            name = words.pop(0)
            if not name.islower():  # COMMAND stands for any
                break
            member = command.get_command(context, name)
            assert member is not None, line
            command, context = member, click.Context(member, context, name)
        known = {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        if not isinstance(command, click.Group):
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= known, f"{line}: {used - known}"


def test_the_page_of_commands_names_all():
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    names = [name for name, _ in commands()]
    leaves = [name for name in names if not any(other.startswith(f"{name} ") for other in names)]
    assert [name for name in leaves if f"    {name} " not in page] == []


def test_messages_under_troubleshooting_are_those_of_the_source():
    said = [text for path in (ROOT / "annopipe").rglob("*.py") for text in literals(path)]
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    symptoms = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ") and " | " in line]
    quoted = [quote for symptom in symptoms for quote in re.findall(r"`([^`]+)`", symptom)]
    messages = [quote for quote in quoted if " " in quote and not quote.startswith(("annopipe ", "terminate "))]
    assert len(messages) > 30
    for message in messages:
        pieces = [piece.strip() for piece in message.split("...") if piece.strip()]
        assert any(in_order(pieces, text) for text in said), message


def literals(path: Path) -> list[str]:
    """The texts of a file; values in them are left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def in_order(pieces: list[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def test_every_example_has_a_page_that_shows_it():
    shown = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("how_to/*.md"))
    programs = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in programs if f"../../examples/{name}\n" not in shown] == []


def test_the_readme_fits_on_a_few_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
