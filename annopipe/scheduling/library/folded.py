"""Schedules with the stages folded over the ranks: the last stage is where the first is."""

from annopipe.scheduling import placement
from annopipe.scheduling.library.entries import Entry
from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["ENTRIES"]


def _zbv(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.v(ranks),
        microbatches,
        phases=(
            "2*(p - r) - 1 : F0",
            "r : F1 F0",
            "p - r : F1 I1 W1",
            "m - p : F0 I0 W0 F1 I1 W1",
            "r : I0 I1",
            "p - r : I0 W0",
            "* : W1; * : W0",
        ),
        layout_for="2*p - 1",
    )


def _v_half(ranks: int, microbatches: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.v(ranks),
        microbatches,
        priority=("I", "F", "W"),
        in_flight="(c == 0)*(p + 1 - r//2) + (c == 1)*((r + 1)//2 + 1)",
        memory=2.0 * (ranks // 2 + 1),
    )


def _v_min(ranks: int, microbatches: int) -> ScheduleSpec:
    # One block repeats every six passes: a microbatch goes down and up the V without waiting, one pass a rank. Where
    # the passes of a rank would fall on each other (p divisible by 3), the way back starts one pass later.
    return ScheduleSpec(
        placement.v(ranks),
        microbatches,
        priority=("I", "F", "W"),
        in_order=(("F", "s + 6*k"), ("I", "4*p - 1 - s + (p % 3 == 0) + 6*k")),
        memory=2.0 * ((ranks + 1) // 3 + 1),
    )


def _dualpipev(ranks: int, microbatches: int) -> ScheduleSpec:
    # A line is a step of the published algorithm.
    return ScheduleSpec(
        placement.v(ranks),
        microbatches,
        phases=(
            "2*(p - r - 1) : F0",
            "r + 1 : F0 F1",
            "p - r - 1 : I1 W1 F1",
            "r == p - 1 : F0 B1 F1&B0; m - 2*p + r + 1 - (r == p - 1) : F0&B1 F1&B0",
            "p - r - 1 : B1 F1&B0",
            "(r + 1)//2 : B1 B0; (r + 1)%2 : B1 I0; (r + 1)//2 : I1 I0",
            "p - r - 1 : W I0",
            "* : W",
        ),
        layout_for="2*p",
    )


def _wave(ranks: int, microbatches: int, chunks: int) -> ScheduleSpec:
    return ScheduleSpec(placement.wave(ranks, chunks), microbatches, priority=("F", "B"), in_flight="p*v")


ENTRIES = (
    Entry(
        "zbv",
        _zbv,
        "Two stages a rank in a V, weight gradients in the bubbles: none is left when F, I and W are equal.",
        "no bubble at the memory of 1F1B, if the stages are even",
        "Qi et al., Zero Bubble Pipeline Parallelism, 2024",
        bubble="0 in the window when F=I=W",
        peak="p",
        aliases=("ScheduleZBVZeroBubble", "zbvzerobubble"),
    ),
    Entry(
        "v-half",
        _v_half,
        "A V with half the activation memory of 1F1B.",
        "memory is short, and the bubble should stay small",
        "Qi et al., Pipeline Parallelism with Controllable Memory, 2024",
        peak="p//2+1",
    ),
    Entry(
        "v-min",
        _v_min,
        "A V with the least activation memory, a third of that of 1F1B.",
        "memory is what limits the model",
        "Qi et al., Pipeline Parallelism with Controllable Memory, 2024",
        peak="(p+1)//3+1",
    ),
    Entry(
        "dualpipev",
        _dualpipev,
        "DualPipe folded into a V: forwards and backwards of different microbatches run as combined graphs.",
        "expert-parallel communication to hide, one copy of the parameters",
        "DeepSeek-AI and Sea AI Lab, DualPipeV, 2025",
        bubble="(p-1)(FB+B-3W) in time per stage",
        peak="p+1/2",
        aliases=("ScheduleDualPipeV",),
    ),
    Entry(
        "wave",
        _wave,
        "The stages go down and up the ranks several times.",
        "a smaller bubble than 1F1B without two copies of the model",
        "Liu et al., Hanayo, 2023",
        peak="p",
        options=(("chunks", 4),),
        aliases=("hanayo",),
    ),
)
