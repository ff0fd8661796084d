"""Labels that cost little show in the profiler."""

import torch

from annopipe.pipeline.labels import label


def test_a_label_shows_in_the_profiler_and_may_enclose_another() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, label("0F1"), label("in"):
        torch.ones(2).add(1)
    names = [event.name for event in profile.events()]
    assert {"0F1", "in", "aten::add"} <= set(names)
