import pytest

from annopipe.simulation import Network, ProgramTimeline, Task, html, run
from annopipe.simulation.wording import seconds_text
from tests.simulation.pages import NASTY, Outline, data
from tests.simulation.programs import overlapped


def nasty() -> ProgramTimeline:
    return run(
        [
            Task(NASTY, "launch", 2.0, NASTY, NASTY, NASTY, queue=NASTY),
            Task(NASTY, "compute", 1.0, NASTY, NASTY, NASTY),
            Task(NASTY, "wait", launch=0, region=NASTY, lane=NASTY),
        ]
    )


@pytest.mark.parametrize("timeline", [run(overlapped()), run(overlapped(), Network(in_flight=2)), run([]), nasty()])
def test_page_is_well_formed_and_needs_nothing_else(timeline):
    page = html.page({"one": timeline}, "title")
    outline = Outline(page)
    assert outline.open == []
    assert not {"link", "img", "iframe", "object"} & set(outline.elements)
    assert not {"src", "href", "srcset"} & {name for name, _ in outline.attributes}
    assert "http" not in page
    assert "url(" not in page
    assert "@@" not in page.replace("@@DATA@@", "" if timeline == nasty() else "@@")


def test_text_of_users_is_escaped():
    page = html.page({NASTY: nasty()}, NASTY)
    outline = Outline(page)
    assert outline.elements.count("script") == 2
    assert NASTY in "".join(outline.text)
    assert "<script>alert" not in page
    assert NASTY in data(page)["texts"]


def test_data_holds_every_span_of_every_timeline():
    timelines = {"one": run(overlapped()), "two": run(overlapped(), Network(in_flight=2))}
    found = data(html.page(timelines, "both"))
    for drawing, timeline in zip(found["timelines"], timelines.values(), strict=True):
        spans = [(row["label"], *span[:3]) for row in drawing["rows"] for span in row["spans"]]
        assert spans == [(track.label, s.start, s.end, s.kind) for track in timeline.tracks for s in track.spans]
        assert drawing["makespan"] == timeline.makespan


def test_page_says_what_holds_each_stall_and_what_is_exposed():
    timeline = run(overlapped())
    page = html.page({"": timeline}, "title")
    shown = "".join(Outline(page).text)
    assert len(timeline.stalls) == 2
    for stall in timeline.stalls:
        assert stall.reason in shown
        assert stall.reason in data(page)["texts"]
    for region in timeline.regions:
        assert region.region in shown
        assert region.why in shown
        assert ("title", region.reason) in Outline(page).attributes


def test_page_names_host_synchronisations_and_what_a_group_of_their_own_would_save():
    timeline = run(overlapped())
    page = html.page({"": timeline}, "title")
    shown = "".join(Outline(page).text)
    (sync,) = timeline.host_syncs
    assert sync.sentence in shown
    assert sync.sentence in data(page)["texts"]
    assert "a process group of their own would save nothing" in shown


def test_page_shows_the_time_of_issuing_and_of_interference():
    timeline = run(overlapped(), Network(interference=0.5))
    shown = "".join(Outline(html.page({"": timeline}, "title")).text)
    assert "issue 250 ms" in shown
    assert f"interference {seconds_text(timeline.interference_time)}" in shown


def test_regions_of_one_name_share_a_colour_that_does_not_depend_on_their_order():
    tasks = [Task(name, "compute", 1.0, f"block{name}/moe/{name}") for name in ("b", "c", "a")]
    tasks.append(Task("again", "compute", 1.0, "block7/a"))
    hues = data(html.page({"": run(tasks)}, "title"))["hues"]
    assert list(hues) == ["a", "b", "c"]
    assert hues == data(html.page({"": run(tasks[::-1])}, "title"))["hues"]
    assert len(set(hues.values())) == 3


def test_file_is_the_same_each_time(tmp_path):
    run(overlapped()).to_html(tmp_path / "one.html", title="T")
    html.write(tmp_path / "two.html", {"": run(overlapped())}, "T")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert "<title>T</title>" in (tmp_path / "one.html").read_text(encoding="utf-8")
