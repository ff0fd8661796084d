"""Classes of torch.distributed.pipelining to compare with, and what some releases of PyTorch do otherwise there."""

import torch

from benchmarks.eager_names import can_run

__all__ = ["COMBINED", "OF_2_11", "SPLIT", "classes"]

# It learns shapes from a forward on zeros in its first step, which draws random numbers; and its classes that split
# backwards cannot hand on what has no gradient.
OF_2_11 = torch.__version__.startswith("2.11.")
# Classes that split backwards, and that combine a forward and a backward where there are such.
SPLIT, COMBINED = ("ScheduleInterleavedZeroBubble",) * 2 if OF_2_11 else ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
# Stages a rank, whether the last half is folded back, and whether backwards are split.
_CLASSES = {
    "ScheduleGPipe": (1, False, False),
    "Schedule1F1B": (1, False, False),
    "ScheduleLoopedBFS": (2, False, False),
    "ScheduleInterleaved1F1B": (2, False, False),
    "ScheduleInterleavedZeroBubble": (2, False, True),
    "ScheduleZBVZeroBubble": (2, True, True),
    "ScheduleDualPipeV": (2, True, True),
}


def classes(ranks: int) -> dict[str, tuple[int, bool, bool]]:
    """Those that the installed PyTorch runs over gloo on so many ranks; the values as above."""
    return {name: about for name, about in _CLASSES.items() if can_run(about[0], ranks, folded=about[1])}
