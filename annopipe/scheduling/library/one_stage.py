"""Schedules with one stage a rank."""

from annopipe.scheduling import placement
from annopipe.scheduling.library.entries import Entry
from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["ENTRIES"]


def _naive(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(placement.linear(ranks), microbatches, in_flight=1)


def _gpipe(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(placement.linear(ranks), microbatches, phases=("m : F", "m : B"))


def _forward_only(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(placement.linear(ranks), microbatches, priority=("F",))


def _1f1b(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(placement.linear(ranks), microbatches, priority=("B", "F"), in_flight="p - r")


def _eager_1f1b(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(placement.linear(ranks), microbatches, priority=("B", "F"), in_flight="2*(p - r) - 1")


def _zb_h1(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.linear(ranks),
        microbatches,
        phases=("p - r : F", "r : I F", "m - p : I W F", "* : I W"),
        layout_for="p",
    )


def _zb_h2(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.linear(ranks),
        microbatches,
        priority=("I", "F", "W"),
        in_flight="2*(p - r) - 1",
        memory=2.0 * ranks - 1,
    )


ENTRIES = (
    Entry(
        "naive",
        _naive,
        "One microbatch at a time: all ranks but one wait.",
        "to see what a pipeline is for",
        "stop and wait",
        bubble="(p-1)/p of the time",
        peak="1",
    ),
    Entry(
        "gpipe",
        _gpipe,
        "All forwards, then all backwards.",
        "few microbatches, or memory is no concern",
        "Huang et al., GPipe, 2019",
        bubble="(p-1)(F+B)",
        peak="m",
        aliases=("ScheduleGPipe",),
    ),
    Entry(
        "1f1b",
        _1f1b,
        "After a warm-up one forward and one backward in turns.",
        "the least memory with one stage a rank",
        "Narayanan et al., PipeDream-Flush, 2021",
        bubble="(p-1)(F+B)",
        peak="min(p-r, m) on rank r",
        aliases=("Schedule1F1B",),
    ),
    Entry(
        "eager-1f1b",
        _eager_1f1b,
        "1F1B with a longer warm-up, so that messages have time to arrive.",
        "slow links between the ranks",
        "Zhuang et al., On Optimizing the Communication of Model Parallelism, 2023",
        bubble="(p-1)(F+B)",
        peak="min(2(p-r)-1, m) on rank r",
    ),
    Entry(
        "zb-h1",
        _zb_h1,
        "1F1B with weight gradients moved into the bubbles, memory as 1F1B.",
        "less bubble at the memory of 1F1B",
        "Qi et al., Zero Bubble Pipeline Parallelism, 2024",
        bubble="(p-1)(F+I-W)",
        peak="p",
    ),
    Entry(
        "zb-h2",
        _zb_h2,
        "A longer warm-up, so that no rank idles between its first and its last action.",
        "memory for 2p-1 microbatches, and an optimizer step that need not wait for all ranks",
        "Qi et al., Zero Bubble Pipeline Parallelism, 2024",
        bubble="(p-1)(F+I-2W) in the window",
        peak="2p-1",
    ),
    Entry(
        "forward-only",
        _forward_only,
        "Forwards alone.",
        "evaluation and inference",
        "every pipeline",
        bubble="(p-1)F",
        peak="1",
        aliases=("ScheduleForwardOnly",),
    ),
)
