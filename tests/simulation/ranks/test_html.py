import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.simulation.ranks import html
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import RankSpan
from tests.simulation.pages import NASTY, Outline, data
from tests.simulation.ranks.schedules import (
    Drawn,
    empty,
    nano_batched,
    one_f_one_b,
    simulate,
    v_shape,
    with_operations,
    zero_bubble,
)

RUNNER = Path(__file__).parents[1] / "page_runner.js"
KINDS = {"1f1b": one_f_one_b, "zb-h1": zero_bubble, "v": v_shape}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the page's script")


def nasty() -> Drawn:
    span = RankSpan(0, NASTY, "OFF", 0.0, 1.0, 0, None)
    both = RankSpan(0, NASTY, NASTY, 1.0, 2.0, 0, None, 0, (NASTY, "0F1"))
    timeline = empty()
    return replace(timeline, name=NASTY, makespan=2.0, window=2.0, spans=((span, both), ()))


def decoded(drawing: dict[str, Any], looks: list[list[Any]]) -> list[list[tuple[str, float, float]]]:
    """Text, start and end of every span, as the page's script reads them."""
    ranks = []
    for flat in drawing["spans"]:
        row, at, time = [], 0, 0
        while at < len(flat):
            start = time + flat[at]
            time = start + flat[at + 1]
            text, kind, *inside = drawing["shapes"][flat[at + 2]]
            pairs = list(zip(inside[::2], inside[1::2], strict=True))
            numbers = flat[at + 3 : at + 3 + len(pairs)]
            parts = [f"{s}{looks[look][0]}{k if k >= 0 else ''}" for (look, s), k in zip(pairs, numbers, strict=True)]
            usual = f"({';'.join(parts)}){kind}" if len(parts) > 1 else parts[0]
            row.append((text or usual, start * drawing["tick"], time * drawing["tick"]))
            at += 3 + len(pairs)
        ranks.append(row)
    return ranks


def run_page(tmp_path: Path, timelines: Mapping[str, Pictured], *arguments: float) -> dict[str, Any]:
    html.write(tmp_path / "page.html", timelines)
    command = ["node", str(RUNNER), str(tmp_path / "page.html"), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("timeline", [simulate("1f1b", one_f_one_b(4, 8)), empty(), nasty(), with_operations()])
def test_page_is_well_formed_and_needs_nothing_else(timeline):
    page = html.page({"one": timeline}, "title")
    outline = Outline(page)
    assert outline.open == []
    assert not {"link", "img", "iframe", "object"} & set(outline.elements)
    assert not {"src", "href", "srcset"} & {name for name, _ in outline.attributes}
    assert "http" not in page
    assert "url(" not in page


def test_text_of_users_is_escaped():
    page = html.page({NASTY: nasty()}, NASTY)
    outline = Outline(page)
    assert outline.elements.count("script") == 2
    assert NASTY in "".join(outline.text)
    assert "<script>alert" not in page
    assert any(NASTY in shape for shape in data(page)["timelines"][0]["shapes"])


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)), st.integers(1, 4), st.integers(1, 6), st.sampled_from([0.0, 0.25, 1 / 3, 2**0.5])
)
def test_data_holds_every_span(kind, ranks, microbatches, latency):
    timeline = simulate(kind, KINDS[kind](ranks, microbatches), latency=latency)
    found = data(html.page({"": timeline}, ""))
    for row, spans in zip(decoded(found["timelines"][0], found["looks"]), timeline.spans, strict=True):
        assert [text for text, _, _ in row] == [span.text for span in spans]
        for (_, start, end), span in zip(row, spans, strict=True):
            assert math.isclose(start, span.start, abs_tol=1e-7 * timeline.makespan)
            assert math.isclose(end, span.end, abs_tol=1e-7 * timeline.makespan)


def test_data_of_a_large_schedule_is_compact():
    page = html.page({"": simulate("zb", zero_bubble(16, 256))}, "")
    actions = 3 * 16 * 256
    assert len(page) / actions < 30


def test_file_is_the_same_each_time_in_a_folder_that_is_made(tmp_path):
    for name in ("one", "two"):
        html.write(tmp_path / "new" / f"{name}.html", {"": simulate("v", v_shape(2, 2))}, "T")
    assert (tmp_path / "new" / "one.html").read_bytes() == (tmp_path / "new" / "two.html").read_bytes()


def test_numbers_stand_side_by_side_below_the_drawings():
    timelines = {"1f1b": simulate("x", one_f_one_b(4, 8)), "zb": simulate("y", zero_bubble(4, 8))}
    shown = "".join(Outline(html.page(timelines, "")).text)
    assert "to best" in shown
    assert "+22.2%" in shown


@needs_node
def test_script_draws_the_number_of_every_action_and_outlines_the_critical_path(tmp_path):
    timeline = simulate("1f1b", one_f_one_b(2, 4))
    report = run_page(tmp_path, {"": timeline})
    numbers = [text for text in report["first"] if text in {"0", "1", "2", "3"}]
    assert len(numbers) >= sum(map(len, timeline.spans))
    assert {"rank 0", "rank 1", "memory", "2"} <= set(report["first"])
    assert report["legend"] == ["forward", "backward", "critical path", "memory of rank 0", "memory of rank 1"]
    assert report["outlines"] == len([part for part in timeline.critical_path if isinstance(part, RankSpan)]) + 1


@needs_node
def test_hover_says_what_an_action_is_and_what_it_waited_for(tmp_path):
    timeline = simulate("1f1b", one_f_one_b(2, 1), latency=0.5)  # 0F0 0-1, 1F0 1.5-2.5, 1B0 2.5-4.5, 0B0 5-7
    inside = 1000 - 104 - 118
    report = run_page(tmp_path, {"": timeline}, 104 + inside * 2.0 / 7.0, 60, 0, 104 + inside * 1.2 / 7.0, 60, 0)
    on_action, on_pause = (tip["lines"] for tip in report["tips"])
    assert on_action == [
        "1F0",
        "forward of stage 1, microbatch 0",
        "rank 1, 1 s, from 1.5 s to 2.5 s",
        "memory at its start 1",
        "on the critical path",
        "uses 0SEND_F0 of rank 0, there since 1.5 s",
        "idle 1.5 s before it, until 0SEND_F0 of rank 0 arrived",
    ]
    assert on_pause == []


@needs_node
def test_nano_batches_are_named_where_the_pointer_is_and_in_the_legend(tmp_path):
    timeline = nano_batched()  # 1F0/2 0.5-1, the pair 1.5-4
    inside = (1000 - 104 - 118) / timeline.makespan
    report = run_page(tmp_path, {"": timeline}, 104 + inside * 0.7, 60, 0, 104 + inside * 2.0, 60, 0)
    alone, pair = (tip["lines"] for tip in report["tips"])
    assert alone[:2] == ["1F0/2", "forward of stage 1, microbatch 0, as 2 nano-batches"]
    assert pair[:3] == [
        "(1F1;1B0/2)OVERLAP_F_B",
        "forward of stage 1, microbatch 1",
        "backward of stage 1, microbatch 0, as 2 nano-batches",
    ]
    assert data((tmp_path / "page.html").read_text(encoding="utf-8"))["looks"][0][5] == 2


@needs_node
def test_numbers_come_with_zoom_where_actions_are_too_narrow(tmp_path):
    report = run_page(tmp_path, {"": simulate("zb", zero_bubble(4, 400))}, 500, 30, 12)
    assert "200" not in report["first"]
    (tip,) = report["tips"]
    assert tip["lines"][0][1] in "FIW"
    microbatch = tip["lines"][1].rpartition(" ")[2]
    assert microbatch in tip["written"]


@needs_node
@pytest.mark.parametrize("timeline", [empty(), nasty(), with_operations(), simulate("v", v_shape(3, 2))])
def test_script_runs_for_every_kind_of_timeline(tmp_path, timeline):
    report = run_page(tmp_path, {"a": timeline, "b": timeline}, 110, 30, 0, 500, 30, 3)
    assert len(report["tips"]) == 2


def test_a_page_without_a_title_names_the_schedule(tmp_path: Path) -> None:
    ap.simulate(ap.schedule("zbv", 2, 2)).to_html(tmp_path / "a.html")
    assert "<title>annopipe schedule zbv</title>" in (tmp_path / "a.html").read_text(encoding="utf-8")
