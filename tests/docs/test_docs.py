"""The pages say what is so: their code, programs and commands run and print what they show; links lead somewhere."""

import ast
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.cli import main
from annopipe.ordering import registry
from tools.gallery import gallery, picture_name
from tools.make_docs import DOCS, GUIDES, IMAGES, save_guide_pictures
from tools.pages import Block, blocks, commands, matches, run_python

ROOT = DOCS.parent
GALLERY = DOCS / "schedule_gallery.md"
FOUND = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("how_to/*.md"))]
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "from_scratch" / "README.md"]
PAGES = {path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix(): path for path in FOUND}


def text_of(name: str) -> str:
    return PAGES[name].read_text(encoding="utf-8")


def with_a_block(language: str) -> list[str]:
    return [name for name in PAGES if any(block.language == language for block in blocks(text_of(name)))]


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    """Nothing is there but the examples; what a page leaves in this process is taken back."""
    policies, threads = set(ap.policies()), torch.get_num_threads()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    yield tmp_path
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in set(ap.policies()) - policies:
        registry.forget(name)


@pytest.mark.parametrize("name", with_a_block("python"))
def test_the_code_runs_and_prints_what_the_page_shows(name, in_an_empty_folder):
    for block, printed in run_python(text_of(name), name):
        expected = block.expected or ""
        if torch.__version__ >= "2.15":  # a size is among the nodes of combine there
            expected = expected.replace("combine    launch, wait", "combine    compute, launch, wait")
        assert matches(expected, printed), f"{name}, line {block.line}, prints:\n{printed}"
    # `make docs` takes the pictures from there.
    shown = set(re.findall(r"\(images/([\w.-]+\.png)\)", text_of(name)))
    assert all((IMAGES / picture).is_file() for picture in shown)
    if name in GUIDES:
        assert any((in_an_empty_folder / picture).is_file() for picture in shown)


@pytest.mark.parametrize("name", with_a_block("console"))
def test_the_commands_run_and_print_what_the_page_shows(name, in_an_empty_folder, monkeypatch, capsys):
    for command in commands(text_of(name)):
        program, *arguments = shlex.split(command.line)
        if program == "python":
            assert arguments[0] == "-m"
            monkeypatch.setattr(sys, "argv", arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__")
        else:
            assert program == "annopipe"
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            assert ended.value.code in (None, 0), f"{command.line}: {capsys.readouterr().err}"
        printed = capsys.readouterr().out
        if command.expected is not None:
            assert matches(command.expected, printed), f"{command.line} prints:\n{printed}"


@pytest.mark.parametrize(
    ("name", "most"), [("one_f_one_b", 10), ("zb_h1", 10), ("interleaved", 10), ("dualpipev", 10), ("zb_wave", 15)]
)
def test_specs_are_as_short_as_promised(name, most):
    (statement,) = (
        node
        for block in blocks(text_of("schedules.md"))
        if block.language == "python"
        for node in ast.parse(block.text).body
        if (isinstance(node, ast.FunctionDef) and node.name == name)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    )
    assert statement.end_lineno - statement.lineno + 1 <= most


def test_the_guide_compares_the_specs_with_the_library():
    guide = text_of("schedules.md")
    compared = re.findall(r'^assert (\w+)\.build\(\) == ap\.schedule\("([\w-]+)"', guide, re.MULTILINE)
    assert compared == [
        ("one_f_one_b", "1f1b"),
        ("zb_h1", "zb-h1"),
        ("interleaved", "interleaved-1f1b"),
        ("dualpipev", "dualpipev"),
    ]


def test_pictures_that_a_guide_writes_and_shows_are_kept(tmp_path):
    guide = tmp_path / "guide.md"
    code = "import annopipe as ap\ntimeline = ap.simulate(ap.schedule('1f1b', 2, 2))\n"
    written = "".join(f"timeline.to_png('{name}.png')\n" for name in ("shown", "other"))
    guide.write_text(f"```python\n{code}{written}```\n\n![1f1b](images/shown.png)\n")
    save_guide_pictures(guide, tmp_path / "images")
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["shown.png"]


def test_the_gallery_is_what_the_library_says():
    assert GALLERY.read_text(encoding="utf-8") == gallery(), "run `make docs`"


def test_every_schedule_of_the_gallery_has_its_picture():
    shown = re.findall(r"\(images/([\w.-]+\.png)\)", GALLERY.read_text(encoding="utf-8"))
    assert picture_name("zbv") in shown
    assert [name for name in shown if not (IMAGES / name).is_file()] == []
    assert sum(path.stat().st_size for path in IMAGES.iterdir()) < 1_000_000


@pytest.mark.parametrize("page", [*FOUND, *OTHERS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_of_the_markdown_that_the_site_and_github_both_know(name):
    assert not re.search("^: ", text_of(name), re.MULTILINE)  # a list of definitions
    assert "\n\n\n" not in re.sub(r"```.*?```", "code", text_of(name), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall("^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_block_is_found_with_the_output_behind_it_and_no_other():
    page = "```python\n1\n```\n\n```text\n2\n```\n\n```python\n3\n```\nwords\n```text\n4\n```\n"
    code = [block for block in blocks(page) if block.language == "python"]
    assert [(block.line, block.expected) for block in code] == [(2, "2\n"), (10, None)]
    assert blocks("```console\n$ a\n```\n") == [Block("console", "$ a\n", 2)]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a", "a  \n", True),
        ("a\n", "b\n", False),
        ("0 ... 1\n", "0 xxx 1\n", False),
        ("...\nb\n", "a\nb\n", True),
        ("a\n...\n", "a\n", True),
        ("", "a\n", False),
        ("", "", True),
    ],
)
def test_only_a_line_of_three_dots_stands_for_any_lines(expected, printed, same):
    assert matches(expected, printed) is same
