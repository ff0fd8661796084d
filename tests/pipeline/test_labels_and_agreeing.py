"""Small parts that every action or step of the runtime goes through."""

import json

import torch

from annopipe.pipeline.agreeing import agreed_text, digest
from annopipe.pipeline.labels import label
from benchmarks.launch import run_ranks


def test_a_label_shows_in_the_profiler_and_may_enclose_another() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, label("0F1"), label("in"):
        torch.ones(2).add(1)
    names = [event.name for event in profile.events()]
    assert {"0F1", "in", "aten::add"} <= set(names)


def test_a_rank_alone_agrees_with_itself_until_the_call_changes() -> None:
    assert agreed_text("a", 1, None) == agreed_text("a", 2, None) == str(digest("a"))
    assert agreed_text("b", 1, None) != agreed_text("a", 1, None)


def test_ranks_get_one_text_that_depends_on_all_of_them_and_schedules_must_be_the_same() -> None:
    outputs = [json.loads(text) for text in run_ranks("tests.pipeline.disagreeing", 2, timeout_s=400)]
    assert outputs[0] == outputs[1]
    same, other, message = outputs[0]
    assert same == f"{digest('call')} {digest('call')}"
    assert other == f"{digest('call of rank 0')} {digest('call of rank 1')}"
    assert message == "ranks 0 and 1 have different schedules; give all ranks the same"
