"""The pictures of real schedules: of every one in the library, as the simulator times it."""

import json

import pytest

import annopipe as ap
from annopipe.scheduling.library import schedule, schedules
from annopipe.simulation.ranks import html, perfetto, text
from annopipe.simulation.ranks.comparison import compare
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from tests.simulation.pages import data
from tests.simulation.ranks.test_html import decoded

COSTS = ap.costs.table(F=1.0, I=1.1, W=0.9, send=0.2, latency=0.05, activation=2e9)


def timeline(name: str, ranks: int = 4, microbatches: int = 8) -> ScheduleTimeline:
    found = ap.simulate(schedule(name, ranks, microbatches), COSTS)
    assert isinstance(found, ScheduleTimeline)
    return found


@pytest.mark.parametrize("name", schedules())
def test_every_schedule_of_the_library_is_drawn(name):
    drawn = timeline(name)
    lines = str(drawn).splitlines()
    assert str(drawn) == text.render(drawn)
    assert lines[0] == f"{name}, 4 ranks"
    assert max(map(len, lines)) <= 100
    found = data(html.page({name: drawn}, ""))
    rows = decoded(found["timelines"][0], found["looks"])
    assert [[shown for shown, _, _ in row] for row in rows] == [[span.text for span in row] for row in drawn.spans]


@pytest.mark.parametrize("name", ["1f1b", "dualpipev", "chimera"])
def test_every_message_has_an_arrow_to_the_action_that_uses_it(name):
    drawn = timeline(name)
    events = [event["ph"] for event in perfetto.events(drawn)]
    assert events.count("s") == events.count("f") == len(drawn.messages) > 0


def test_methods_of_a_timeline_write_the_files(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")
    drawn = timeline("dualpipev")
    drawn.to_png(tmp_path / "new" / "x.png")
    drawn.to_html(tmp_path / "new" / "x.html")
    drawn.to_perfetto(tmp_path / "new" / "x.json")
    assert (tmp_path / "new" / "x.png").read_bytes()[1:4] == b"PNG"
    assert "dualpipev" in (tmp_path / "new" / "x.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "new" / "x.json").read_text(encoding="utf-8"))["traceEvents"]


def test_the_critical_path_of_a_simulated_schedule_is_on_the_page():
    drawn = timeline("zb-h1")
    critical = data(html.page({"": drawn}, ""))["timelines"][0]["critical"]
    assert sum(map(len, critical)) == sum(hasattr(part, "rank") for part in drawn.critical_path) > 0


def test_compare_agrees_with_the_timelines():
    lines = compare({name: timeline(name) for name in ("1f1b", "zb-h1")}).splitlines()
    assert [line.split()[0] for line in lines] == ["schedule", "1f1b", "zb-h1"]
