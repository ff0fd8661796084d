"""The page of the MoE job: everything of the results is on it, nothing of it is elsewhere, and damage is refused."""

import copy
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import AnnopipeError
from benchmarks.moe_page import write_page
from benchmarks.moe_page.comparing import by_setting, over_best_eager
from benchmarks.moe_page.drawing import MOST_BARS, Drawing, shown_bars
from benchmarks.moe_page.page import page
from benchmarks.moe_page.results import Results
from tests.benchmarks.moe_results import bars, results, row
from tests.simulation.pages import NASTY, Outline


def text_of(data: dict[str, Any]) -> str:
    """The page without pictures, which is well formed."""
    found = Results.of(data)
    text = page(found, {name: [] for name in found.configurations()})
    assert not Outline(text).open
    return text


def table_rows(text: str) -> list[dict[str, str]]:
    """The cells of the rows of all tables that can be sorted, by the names of their columns."""
    found = []
    for table in re.findall(r'<table class="sortable">(.*?)</table>', text, re.DOTALL):
        names = re.findall(r'<button type="button">(.*?)</button>', table)
        for line in re.findall(r"<tr>(<td.*?)</tr>", table):
            found.append(dict(zip(names, re.findall(r"<td[^>]*>(.*?)</td>", line), strict=True)))
    return found


def test_every_row_is_on_the_page_the_fastest_of_its_configuration_first() -> None:
    rows = table_rows(text_of(results()))
    names = ("runtime", "schedule", "nano-batches", "kind", "step")
    assert [tuple(row.get(name, "") for name in names) for row in rows] == [
        ("annopipe", "dualpipev", "2", "paced", "90 ms"),
        ("annopipe", "dualpipev", "1", "paced", "110 ms"),
        ("eager", "dualpipev", "1", "paced", "180 ms"),
        ("eager", "zbv", "1", "paced", "210 ms"),
        ("annopipe", "zbv", "1", "simulated", ""),
    ]
    assert list(rows[0].values())[10:17] == ["3", "90 ms", "80 ms to 100 ms", "80 ms", "1.125", "64 ms", "2.00x"]
    assert list(rows[-1].items())[9:] == [
        ("kind", "simulated"),
        ("simulated", "1 s"),
        ("bound", "800 ms"),
        ("exposed, simulated", "200 ms"),
        ("peak, simulated", "3 GiB"),
        ("missing", "only simulated"),
    ]


def test_a_row_is_compared_with_the_best_eager_one_of_its_setting_and_kind_only() -> None:
    eager = {"runtime": "eager"}
    rows = Results.of(
        results(
            row("a", 1.0),
            row("b", 3.0, **eager),
            row("c", 2.0, **eager),
            row("elsewhere", 0.5, skew=2.0, **eager),
            row(
                "real",
                4.0,
                measured={"kind": "measured", "seconds": [4.0], "exposed_seconds": None, "peak_bytes": None},
            ),
            row("guess"),
        )
    ).rows
    groups = by_setting(rows)
    assert [len(those) for those in groups.values()] == [5, 1]
    found = {each.schedule: over_best_eager(each, groups[each.setting]) for each in rows}
    assert found == {"a": 2.0, "b": 2 / 3, "c": 1.0, "elsewhere": 1.0, "real": None, "guess": 2.0}


def test_what_is_missing_is_said() -> None:
    bare = {"measured": None, "predicted": None, "why_missing": None}
    text = text_of(results(row("zbv", **bare), headline=None, talk=[], environment={}, command=None))
    for said in (
        "There is no headline",
        "compared nothing with published numbers",
        "does not say where it ran",
        "a command that the results do not name",
        "kept no timeline",
        "nothing says why",
        "No row says: step time; exposed communication, the ranks of a pipeline together; peak memory of a rank.",
    ):
        assert said in text
    assert "Timelines: those of 3 more rows were not kept." in text_of(results())
    assert "was interrupted" not in text
    assert "The run was interrupted" in text_of(results(interrupted=True))


def test_the_headline_shows_its_chain_and_whether_it_is_met() -> None:
    text = text_of(results())
    assert "<b>2.00x</b> asked: at least 1.5x; met" in text
    assert re.search(r"<td>nano-batches</td><td>1.600x</td><td>2.000x</td>", text)
    less = text_of(results(headline={"asked": 1.5, "found": 1.4, "chain": [["graphs", 1.2]]}))
    assert "1.5x; not met" in less
    assert "multiply to 1.20x and not to the whole" in less
    named = {"asked": 1.5, "found": 1.6, "chain": [], "config": "tiny", "of": "eager zbv", "by": "ours", "least": 1.4}
    several = text_of(results(headlines=[named, {**named, "config": "medium"}]))
    assert "<p>ours over eager zbv in tiny</p>" in several
    assert "<p>ours over eager zbv in medium</p>" in several
    assert "1.40x by the rounds that are worst for it" in several
    assert "does not say where it comes from" in text_of(results(headline={"asked": 1.5, "found": 1.4, "chain": []}))


def test_a_configuration_says_what_it_is_and_what_it_leaves_out() -> None:
    configs = {"tiny": {"kind": "paced", "rounds": 5, "left_out": ["policies of <zbv>: it has no pairs"]}}
    text = text_of(results(configs=configs))
    assert "<td>kind</td><td>paced</td>" in text
    assert "<td>rounds</td><td>5</td>" in text
    assert "<li>policies of &lt;zbv&gt;: it has no pairs</li>" in text
    assert text.count("<summary>the configuration") == 1


def test_the_most_telling_timelines_are_drawn_and_the_others_counted() -> None:
    timeline = [[0, "compute", 0.0, 1.0, "mm"]]
    ours = [row(f"s{number}", 1.0 + number, timeline=timeline) for number in range(9)]
    eager = row("zbv", 100.0, runtime="eager", timeline=timeline)
    text = text_of(results(*ours, eager))
    assert re.findall(r'aria-label="([\w ]+), auto"', text) == [*(f"annopipe s{n}" for n in range(5)), "eager zbv"]
    assert "Timelines: those of 4 more rows are not drawn." in text


def test_published_numbers_stand_beside_those_found() -> None:
    text = text_of(results())
    assert "<td>DualPipe</td><td>+70%</td><td>+31%</td><td>paced</td>" in text
    assert "<td>zero bubble</td><td>+7%</td><td>&#8211;</td><td>simulated</td>" in text


def test_the_words_and_the_environment_and_the_command_are_there() -> None:
    text = text_of(results())
    for word in ("measured", "paced", "emulated", "simulated", "published"):
        assert f"<dt>{word}</dt>" in text
    assert "<code>annopipe bench moe --html out</code>" in text
    assert "<td>network</td><td>{&quot;rate&quot;: &quot;100mbit&quot;}</td>" in text
    named = results(environment={"command": "annopipe bench moe --quick"}, command=None)
    del named["command"]
    assert "<code>annopipe bench moe --quick</code>" in text_of(named)


def test_nothing_on_the_page_is_elsewhere() -> None:
    text = text_of(results())
    values = [value or "" for name, value in Outline(text).attributes if name in {"src", "href", "data", "action"}]
    assert all(value.startswith(("#s", "data:")) for value in values)
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(|<link|<script src|@@", text)
    assert re.findall(r"https?://[^\"']+", text) == ["http://www.w3.org/2000/svg"]


def nasty_results(text: str) -> dict[str, Any]:
    timeline = [[0, "compute", 0.0, 1.0, text]]
    return results(
        row(text, 1.0, config=text, policy=text, why_missing=text, timeline=timeline),
        command=text,
        environment={text: text},
        headline={"asked": 1.0, "found": 1.0, "chain": [[text, 1.0]]},
        talk=[[text, text, text, text]],
    )


def test_texts_are_escaped_wherever_they_stand() -> None:
    text = text_of(nasty_results(NASTY))
    assert "</script><script>" not in text
    assert text.count("&lt;/script&gt;") >= 12
    assert 2 * text.count("@@DATA@@") == text.count("&lt;/script&gt;")
    assert len(Outline(text).scripts) == len(Outline(text_of(results())).scripts)


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_any_text_leaves_the_page_whole(text: str) -> None:
    elements = Outline(text_of(nasty_results("plain"))).elements
    assert Outline(text_of(nasty_results(text))).elements == elements


def test_a_timeline_has_two_lanes_a_rank_and_says_what_each_bar_is() -> None:
    text = text_of(results(row("dualpipev", 0.1, timeline=bars("dualpipev", 2, 4))))
    assert "rank 0</div>" in text
    assert "rank 1</div>" in text
    assert "rank 2</div>" not in text
    assert "<title>0F0\n1 ms from 0 s</title>" in text
    assert "<title>dispatch of 0F0\n1 ms from 0 s</title>" in text
    assert 'class="key"><svg><rect class="k-F" width="18" height="12"/></svg>forward<' in text
    assert "cut:" not in text


def test_a_combination_shows_its_parts_in_their_colours() -> None:
    (found,) = Results.of(results(row("a", 1.0, timeline=[[0, "compute", 0.0, 1.0, "(0F1;1B0)OVERLAP_F_B"]]))).rows
    drawing = Drawing(found.timeline, 1.0)
    assert drawing.kinds() == ["F", "B"]
    assert re.findall(r'class="k-(\w+)" x="(\w+)%" y="(\w+)" width="(\w+)%" height="(\w+)"', drawing.svg("a")) == [
        ("F", "0", "0", "100", "8"),
        ("B", "0", "8", "100", "8"),
    ]


def test_a_long_timeline_is_cut_and_says_so() -> None:
    long = [[rank, "compute", float(t), t + 0.5, "mm"] for t in range(1500) for rank in range(2)]
    text = text_of(results(row("a", 1.0, timeline=long)))
    assert f"1500 s; cut: the first {MOST_BARS} of 3000 bars, up to 1000 s" in text
    assert text.count("<title>mm") == MOST_BARS


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.integers(0, 1))
def test_what_is_drawn_lies_inside_the_axis(places: list[tuple[int, int]], length: int) -> None:
    timeline = [[rank, "compute", float(start), float(start + length), ""] for rank, start in places]
    (found,) = Results.of(results(row("a", 1.0, timeline=timeline))).rows
    drawn, until = shown_bars(found.timeline)
    assert len(drawn) == len(places)
    svg = Drawing(drawn, until or 1.0).svg("a")
    boxes = re.findall(r'<rect class="k-compute" x="([\d.e-]+)%" y="[\d.]+" width="([\d.e-]+)%"', svg)
    assert len(boxes) == len(places)
    assert all(float(x) + float(width) <= 100.01 for x, width in boxes)


DAMAGES = [
    ("benchmark", "overlap", "these are results of benchmark 'overlap'"),
    ("rows", {}, "rows is {} and not a list"),
    ("rows", [], "the results have no rows"),
    ("rows[0].pp", 0, "rows[0].pp is 0 and not a whole number of at least 1"),
    ("rows[0].pp", True, "rows[0].pp is True and not a whole number"),
    ("rows[0].runtime", "jax", "rows[0].runtime is 'jax' and not one of annopipe, eager, attached"),
    ("rows[1].measured.seconds", [0.1, float("nan")], "rows[1].measured.seconds[1] is nan and not a number above 0"),
    ("rows[1].measured.seconds", [], "rows[1].measured.seconds is empty"),
    ("rows[1].measured.seconds", 0.1, "rows[1].measured.seconds is 0.1 and not a list"),
    ("rows[1].measured.kind", "felt", "rows[1].measured.kind is 'felt' and not one of paced, measured, emulated"),
    ("rows[1].predicted.exposed_seconds", -1, "rows[1].predicted.exposed_seconds is -1 and not a number of at least 0"),
    ("rows[0].compile", 1, "rows[0].compile is 1 and not true or false"),
    ("rows[0].timeline", [[0, "compute", 1.0]], "rows[0].timeline[0] is [0, 'compute', 1.0] and not a list of 5"),
    ("rows[0].timeline", [[0, "compute", 1.0, 0.5, ""]], "rows[0].timeline[0] ends before it starts"),
    ("rows[0].config", None, "rows[0].config is None and not a text"),
    ("headline.chain", [["a", "b"]], "headline.chain[0][1] is 'b' and not a number above 0"),
    ("environment", [], "environment is [] and not a table"),
    ("environment.torch", "\ud800", "environment.torch is '\\ud800' and not a text"),
    ("rows[0].skew", 10**400, "and not a number of at least 0"),
]


@pytest.mark.parametrize(("place", "value", "said"), DAMAGES)
def test_damaged_results_are_refused_with_the_place(place: str, value: object, said: str, tmp_path: Path) -> None:
    damaged = copy.deepcopy(results())
    *path, last = re.findall(r"\w+", place)
    owner: Any = damaged
    for step in path:
        owner = owner[int(step) if step.isdigit() else step]
    owner[last] = value
    with pytest.raises(AnnopipeError, match=re.escape(said)):
        write_page(damaged, tmp_path / "page")
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("name", ["rows", "talk", "environment"])
def test_results_that_lack_a_part_are_refused_by_its_name(name: str, tmp_path: Path) -> None:
    damaged = results()
    del damaged[name]
    with pytest.raises(AnnopipeError, match=f"damaged results: they have no '{name}'; run `annopipe bench moe` again"):
        write_page(damaged, tmp_path)
    with pytest.raises(AnnopipeError, match=r"rows\[0\]\.measured has no 'kind'"):
        write_page(results(row("a", 1.0, measured={"seconds": [1.0], "exposed_seconds": 0, "peak_bytes": 0})), tmp_path)


def test_a_page_without_matplotlib_is_refused_with_what_to_install(tmp_path, monkeypatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.axes")

    monkeypatch.setattr("annopipe.simulation.pictures.importlib.import_module", missing)
    said = r"matplotlib is not installed; run `pip install 'annopipe\[plots\]'`, or leave out the page"
    with pytest.raises(AnnopipeError, match=said):
        write_page(results(row("zbv", 0.1)), tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AnnopipeError, match="file is no folder; choose"):
        write_page(results(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "page" / "tiny_peak_memory.png").mkdir(parents=True)
    with pytest.raises(AnnopipeError, match=r"tiny_peak_memory\.png: it is a folder"):
        write_page(results(), tmp_path / "page")
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["tiny_peak_memory.png"]


def test_pictures_are_files_and_inside_the_page_and_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")
    first = write_page(results(), tmp_path / "new" / "one")
    assert [path.name for path in first] == [
        "page.html",
        *(f"tiny_{what}.png" for what in ("step_time", "exposed_communication", "peak_memory")),
        *(f"deepseek-v3-671b_{what}.png" for what in ("step_time", "exposed_communication", "peak_memory")),
    ]
    for path in first[1:]:
        assert path.read_bytes()[:4] == b"\x89PNG"
    text = first[0].read_text(encoding="utf-8")
    assert text.count('src="data:image/png;base64,') == 6
    second = write_page(results(), tmp_path / "two")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    bare = {"measured": None, "predicted": None}
    assert [path.name for path in write_page(results(row("a", **bare)), tmp_path / "none")] == ["page.html"]


def test_a_picture_shows_the_fastest_rows_and_says_how_many_there_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")
    few, many = (
        write_page(results(*(row(f"s{n}", 1.0 + n) for n in range(count))), tmp_path / str(count))[1]
        for count in (24, 40)
    )
    (wide, low), (same, high) = (struct.unpack(">II", path.read_bytes()[16:24]) for path in (few, many))
    assert wide == same
    assert 0 < high - low < 40  # a line of text
