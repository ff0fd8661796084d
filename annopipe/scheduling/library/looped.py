"""Schedules with several stages a rank in a loop (interleaved)."""

from annopipe.scheduling import placement
from annopipe.scheduling.library.entries import Entry
from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["ENTRIES"]


def _interleaved_1f1b(ranks: int, microbatches: int, chunks: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.looped(ranks, chunks),
        microbatches,
        traversal="k // p, c, k",
        phases=("2*(p - r - 1) + (v - 1)*p : F", "* : F B"),
        layout_for="(m + p - 1)//p*p",  # whole rounds: the order of a part of one could wait for itself
    )


def _looped_bfs(ranks: int, microbatches: int, chunks: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.looped(ranks, chunks),
        microbatches,
        traversal="breadth-first",
        backward_traversal="v - 1 - c, -k",
        phases=("m*v : F", "m*v : B"),
    )


def _interleaved_zb(ranks: int, microbatches: int, chunks: int) -> ScheduleSpec:
    return ScheduleSpec(
        placement.looped(ranks, chunks),
        microbatches,
        priority=("I", "F", "W"),
        traversal="k // p, c, k",
        memory=float(ranks * chunks),
    )


ENTRIES = (
    Entry(
        "interleaved-1f1b",
        _interleaved_1f1b,
        "1F1B in which every rank holds several stages: a smaller bubble for more messages.",
        "fast links, and layers enough for several stages a rank",
        "Narayanan et al., Megatron-LM, 2021",
        bubble="(p-1)(F+B)/v",
        peak="p+(p-1)/v",
        options=(("chunks", 2),),
        aliases=("ScheduleInterleaved1F1B", "interleaved1f1b"),
    ),
    Entry(
        "looped-bfs",
        _looped_bfs,
        "All microbatches through one stage before the next: all forwards, then all backwards.",
        "sharded parameters: each stage is gathered once",
        "Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023",
        bubble="(p-1)(F+B)/v",
        peak="m",
        options=(("chunks", 2),),
        aliases=("ScheduleLoopedBFS", "loopedbfs"),
    ),
    Entry(
        "interleaved-zb",
        _interleaved_zb,
        "Several stages a rank, weight gradients moved into the bubbles.",
        "less bubble than interleaved 1F1B at the memory of 1F1B",
        "Qi et al., Zero Bubble Pipeline Parallelism, 2024",
        peak="p",
        options=(("chunks", 2),),
        aliases=("ScheduleInterleavedZeroBubble", "interleavedzerobubble"),
    ),
)
