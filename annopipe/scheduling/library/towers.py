"""Schedules for stage graphs that are not chains."""

from collections.abc import Sequence

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.library.entries import Entry
from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["ENTRIES"]


def _distmm_pipe(ranks: int, microbatches: int, towers: Sequence[int] | None) -> ScheduleSpec:
    sizes = _even(ranks) if towers is None else tuple(towers)
    if sum(sizes) != ranks - 1 or len(sizes) < 2 or min(sizes) < 1:
        raise ScheduleError(
            f"distmm-pipe: towers={sizes}, ranks={ranks}: give the ranks of two towers or more, one rank fewer than "
            "there are: the last one holds the stage in which they meet"
        )
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    chains = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    return ScheduleSpec(placement.towers(*chains, top=[ranks - 1], batch_wide=True), microbatches, priority=("B", "F"))


def _even(ranks: int) -> tuple[int, int]:
    if ranks < 3:
        raise ScheduleError(f"distmm-pipe: ranks={ranks}: two towers and the stage in which they meet need 3 or more")
    return ranks // 2, ranks - 1 - ranks // 2


ENTRIES = (
    Entry(
        "distmm-pipe",
        _distmm_pipe,
        "Towers beside each other meet in a stage whose loss needs the whole batch.",
        "image-text and other models with a contrastive loss",
        "Huang et al., DistMM, 2024",
        peak="m",
        options=(("towers", None),),
    ),
)
