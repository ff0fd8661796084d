import json
from dataclasses import replace
from typing import Any

import pytest

from annopipe.errors import AnnopipeError
from annopipe.simulation.ranks import perfetto
from tests.simulation.ranks.schedules import Drawn, empty, nano_batched, one_f_one_b, simulate, v_shape

NASTY = """"</script>\\ \n\u2028"""


@pytest.fixture
def timeline() -> Drawn:
    return simulate("1f1b", one_f_one_b(3, 4), send=0.25, latency=0.5)


def events(timeline: Drawn, phase: str) -> list[dict[str, Any]]:
    found: list[Any] = list(perfetto.events(timeline))
    return [event for event in found if event["ph"] == phase]


def test_file_is_a_chrome_trace_in_a_folder_that_is_made(tmp_path, timeline):
    for name in ("one", "two"):
        perfetto.write(tmp_path / "new" / f"{name}.json", timeline)
    text = (tmp_path / "new" / "one.json").read_text(encoding="utf-8")
    assert text == (tmp_path / "new" / "two.json").read_text(encoding="utf-8")
    assert json.loads(text)["traceEvents"] == list(perfetto.events(timeline))


def test_each_rank_is_a_process_with_a_thread_for_computation_and_one_per_link(timeline):
    names = [(e["pid"], e["args"]["name"]) for e in events(timeline, "M") if e["name"].endswith("_name")]
    assert names == [
        *((rank, name) for rank in range(3) for name in (f"rank {rank}", "compute")),
        (0, "to rank 1"),
        (1, "to rank 0"),
        (1, "to rank 2"),
        (2, "to rank 1"),
    ]


def test_spans_and_messages_are_there_in_microseconds(timeline):
    complete = events(timeline, "X")
    computed = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in complete if e["tid"] == 0]
    spans = [span for row in timeline.spans for span in row]
    assert computed == [(s.rank, s.text, s.start * 1e6, (s.end - s.start) * 1e6) for s in spans]
    sent = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in complete if e["tid"]]
    assert sent == [(m.sender, m.text, m.start * 1e6, (m.sent - m.start) * 1e6) for m in timeline.messages]


def test_an_arrow_leads_from_each_message_to_the_action_that_uses_it(timeline):
    begins = {e["id"]: e for e in events(timeline, "s")}
    ends = {e["id"]: e for e in events(timeline, "f")}
    assert list(begins) == list(ends) == list(range(len(timeline.messages)))
    for number, message in enumerate(timeline.messages):
        assert begins[number]["pid"] == message.sender
        assert ends[number]["pid"] == message.receiver
        used = next(s for s in timeline.spans[message.receiver] if s.start * 1e6 == ends[number]["ts"])
        assert str(used.microbatch) == message.text[-1]


def test_an_action_that_waited_says_for_what_and_the_critical_path_is_marked(timeline):
    found = {e["name"]: e["args"] for e in events(timeline, "X") if e["tid"] == 0}
    assert found["2F0"] == {"stage": 2, "microbatch": 0, "waited_for": "1SEND_F0", "critical": True}
    assert found["0F1"] == {"stage": 0, "microbatch": 1}


def test_combinations_name_their_parts():
    args = next(e["args"] for e in events(simulate("v", v_shape(2, 1)), "X") if "OVERLAP" in e["name"])
    assert args["parts"] == ["0F1", "3B0"]


def test_nano_batches_are_counted_part_by_part():
    found = {e["name"]: e["args"].get("nano_batches") for e in events(nano_batched(), "X") if e["tid"] == 0}
    assert (found["0F0/2"], found["0F1"], found["(1F1;1B0/2)OVERLAP_F_B"]) == ([2], None, [1, 2])


def test_memory_is_a_counter_of_each_rank(timeline):
    counters = [(e["pid"], e["ts"], e["args"]["held"]) for e in events(timeline, "C")]
    expected = [(rank, t * 1e6, x) for rank, steps in enumerate(timeline.memory) for t, x in steps]
    assert counters == expected


def test_any_text_is_escaped(tmp_path, timeline):
    named = replace(timeline.spans[0][0], text=NASTY)
    perfetto.write(tmp_path / "x.json", replace(timeline, spans=((named,), (), ())))
    assert NASTY in {e["name"] for e in json.loads((tmp_path / "x.json").read_text())["traceEvents"]}


def test_an_empty_schedule_has_only_names():
    assert {event["ph"] for event in perfetto.events(empty())} == {"M", "C"}


def test_a_path_that_cannot_be_written_is_refused(tmp_path, timeline):
    with pytest.raises(AnnopipeError, match="cannot write .*: Is a directory; choose a file in a folder"):
        perfetto.write(tmp_path, timeline)
    (tmp_path / "file").write_text("")
    with pytest.raises(AnnopipeError, match="cannot write .*: .*; choose a file in a folder"):
        perfetto.write(tmp_path / "file" / "x.json", timeline)
