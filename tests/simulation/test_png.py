import importlib
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from annopipe.errors import AnnopipeError
from annopipe.simulation import Network, ProgramTimeline, Task, png, run
from annopipe.simulation.picture.bars import Palette
from annopipe.simulation.picture.figure import draw
from annopipe.simulation.picture.lettering import Lettering
from tests.simulation.programs import overlapped

NASTY = "$x_{$ <b>\n\\alpha " + "long " * 60


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def layers(count: int) -> ProgramTimeline:
    tasks: list[Task] = []
    for _ in range(count):
        at = len(tasks)
        tasks += [
            replace(task, after=tuple(needed + at for needed in task.after), launch=task.launch + at)
            if task.kind == "wait"
            else replace(task, after=tuple(needed + at for needed in task.after))
            for task in overlapped()
        ]
    return run(tasks)


def test_file_is_a_png_and_the_same_each_time_whatever_the_settings(tmp_path):
    run(overlapped()).to_png(tmp_path / "one.png", title="T")
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "hatch.linewidth": 5, "savefig.bbox": "tight"}):
        png.write(tmp_path / "two.png", {"": run(overlapped())}, "T")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert size(tmp_path / "one.png")[0] == 1690


def test_settings_and_backend_stay_as_they_are(tmp_path):
    before = dict(mpl.rcParams)
    run(overlapped()).to_png(tmp_path / "one.png")
    assert dict(mpl.rcParams) == before
    program = (
        "import sys; from annopipe.simulation import Task, run; "
        "run([Task('mm', 'compute', 1.0)]).to_png(sys.argv[1]); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "two.png")], check=True, timeout=120)


def test_any_name_and_an_empty_program_can_be_drawn(tmp_path):
    nasty = [
        Task(NASTY, "launch", 2.0, NASTY, NASTY, queue=NASTY),
        Task(NASTY, "compute", 1.0, NASTY, NASTY),
        Task(NASTY, "wait", launch=0),
    ]
    png.write(tmp_path / "one.png", {NASTY: run(nasty), "": run([])}, NASTY)
    png.write(tmp_path / "two.png", {})
    assert size(tmp_path / "two.png")[0] == 1690


def test_title_names_makespans_and_hidden_shares_are_written():
    shown = texts(draw({"one": run(overlapped()), "two": run(overlapped(), Network(interference=1.0))}, "both"))
    assert {"both", "one", "two"} <= set(shown)
    assert sum(text.startswith("makespan ") and "communication hidden" in text for text in shown) == 2
    assert sum(text == "thread" for text in shown) == 2
    assert any(text.startswith("7 s exposed  F/block0/moe/dispatch: launched late") for text in shown)


def test_timelines_share_one_time_axis():
    one, two = run([Task("mm", "compute", 1.0)]), run([Task("mm", "compute", 3.0)])
    assert [axes.get_xlim() for axes in draw({"one": one, "two": two}, "").axes] == [(0.0, 3.0), (0.0, 3.0)]


def test_wide_bars_are_labelled_and_narrow_ones_are_not():
    wide, narrow = Task("a", "compute", 1.0, "block0/attention"), Task("b", "compute", 1e-4, "block0/router")
    shown = texts(draw({"": run([wide, narrow])}, ""))
    assert "attention\n1 s" in shown
    assert not any("router" in text for text in shown)


def test_labels_stand_upright_in_bars_that_are_too_narrow_for_them():
    program = [Task(name, "compute", seconds, name) for name, seconds in (("attention", 0.3), ("experts", 9.7))]
    (label,) = [t for t in draw({"": run(program)}, "").findobj(Text) if t.get_text() == "attention"]
    assert label.get_rotation() == 90.0


def test_legend_names_the_lanes_and_only_what_is_drawn():
    def legend(program: list[Task]) -> list[str]:
        (found,) = draw({"": run(program)}, "").legends
        return [text.get_text() for text in found.get_texts()]

    assert legend(overlapped()) == ["lane B", "lane F", "weight gradient", "stall", "host read"]
    assert legend([Task("mm", "compute", 1.0, lane="F")]) == ["lane F"]


def test_picture_of_many_layers_is_wider_and_stays_within_a_limit(tmp_path):
    widths = [draw({"": layers(count)}, "").get_size_inches()[0] for count in (1, 60, 1000)]
    assert widths[0] < widths[1] < widths[2] == 42.0


def test_lanes_have_the_same_colours_in_every_picture():
    assert Palette(["F", "B"])["F"] == Palette(["B", "F", ""])["F"] != Palette(["B", "F"])["B"]


def test_cut_text_fits_and_keeps_its_end():
    letters = Lettering(FigureCanvasAgg(Figure(dpi=100)))
    cut = letters.cut("block0/moe/dispatch", 0.5, 8)
    assert cut.startswith("..")
    assert "block0/moe/dispatch".endswith(cut[2:])
    assert letters.width(cut, 8) <= 0.5
    assert letters.cut("a", 0.5, 8) == "a"


def test_clipped_sentence_fits_and_keeps_its_beginning():
    letters = Lettering(FigureCanvasAgg(Figure(dpi=100)))
    clipped = letters.clip("2.1 ms exposed  block0/moe/dispatch", 0.5, 8)
    assert clipped.endswith("..")
    assert "2.1 ms exposed  block0/moe/dispatch".startswith(clipped[:-2])
    assert letters.width(clipped, 8) <= 0.5
    assert letters.clip("a", 0.5, 8) == "a"


def test_reason_that_is_too_long_still_says_how_much_is_exposed_and_where():
    program = [
        Task("x" * 500, "compute", 1.0),
        Task("send", "launch", 2.0, "dispatch", after=(0,), queue="ep"),
        Task("arrive", "wait", launch=1),
    ]
    assert any(text.startswith("2 s exposed  dispatch: ") for text in texts(draw({"": run(program)}, "")))


def test_missing_matplotlib_is_an_error_that_says_what_to_install(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.style")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(AnnopipeError, match=r"matplotlib is not installed; run `pip install 'annopipe\[plots\]'`"):
        run([Task("mm", "compute", 1.0)]).to_png(tmp_path / "one.png")


def test_another_missing_module_is_not_blamed_on_matplotlib(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        run([]).to_png(tmp_path / "one.png")


def test_simulation_imports_no_matplotlib_until_something_is_drawn():
    program = "import sys, annopipe.simulation, annopipe.simulation.png; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0
