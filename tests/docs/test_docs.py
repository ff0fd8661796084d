"""The guides say what is so: their code runs, prints what they show, and their specs are as short as they claim."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from annopipe.cli import main
from tools.gallery import gallery, picture_name
from tools.make_docs import IMAGES, save_guide_pictures
from tools.pages import Block, blocks, commands, matches, run_python

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "schedules.md"
PIPELINE = ROOT / "docs" / "pipeline.md"
REWRITERS = ROOT / "docs" / "rewriters.md"
TUNING = ROOT / "docs" / "tuning.md"
GALLERY = ROOT / "docs" / "schedule_gallery.md"
README = ROOT / "README.md"


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def chapter_of_the_readme(name: str) -> str:
    (chapter,) = README.read_text(encoding="utf-8").split(f"## {name}\n")[1:]
    return chapter.partition("\n## ")[0]


PAGES = {
    **{path.name: path.read_text(encoding="utf-8") for path in (GUIDE, PIPELINE, TUNING, REWRITERS)},
    **{f"README.md, {name}": chapter_of_the_readme(name) for name in ("Schedules", "Training")},
}


@pytest.mark.parametrize("name", PAGES)
def test_the_code_runs_and_prints_what_the_page_shows(name, in_an_empty_folder):
    for block, printed in run_python(PAGES[name], name):
        expected = block.expected or ""
        assert matches(expected, printed), f"{name}, line {block.line}, prints:\n{printed}"
    # `make docs` takes the pictures from there.
    shown = set(re.findall(r"\(images/([\w.-]+\.png)\)", PAGES[name]))
    assert all((in_an_empty_folder / picture).is_file() and (IMAGES / picture).is_file() for picture in shown)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_run_and_print_what_the_page_shows(name, in_an_empty_folder, capsys):
    for command in commands(PAGES[name]):
        program, *arguments = shlex.split(command.line)
        assert program == "annopipe"
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        assert ended.value.code in (None, 0), f"{command.line}: {printed.err}"
        if command.expected is not None:
            assert matches(command.expected, printed.out), f"{command.line} prints:\n{printed.out}"


@pytest.mark.parametrize(
    ("name", "most"), [("one_f_one_b", 10), ("zb_h1", 10), ("interleaved", 10), ("dualpipev", 10), ("zb_wave", 15)]
)
def test_specs_are_as_short_as_promised(name, most):
    (statement,) = (
        node
        for block in blocks(PAGES["schedules.md"])
        if block.language == "python"
        for node in ast.parse(block.text).body
        if (isinstance(node, ast.FunctionDef) and node.name == name)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    )
    assert statement.end_lineno - statement.lineno + 1 <= most


def test_the_guide_compares_the_specs_with_the_library():
    compared = re.findall(r'^assert (\w+)\.build\(\) == ap\.schedule\("([\w-]+)"', PAGES["schedules.md"], re.MULTILINE)
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


@pytest.mark.parametrize("page", [GUIDE, PIPELINE, REWRITERS, GALLERY, README], ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    headings = re.findall("^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors
        elif not target.startswith("http"):
            assert (page.parent / target.partition("#")[0]).exists(), target


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
