"""What some releases of PyTorch do otherwise in torch.distributed.pipelining."""

import torch

__all__ = ["COMBINED", "OF_2_11", "SPLIT", "run_by_gloo"]

# It learns shapes from a forward on zeros in its first step, which draws random numbers; its classes that split
# backwards cannot hand on what has no gradient; and stages on one rank send to themselves, which gloo cannot do.
OF_2_11 = torch.__version__.startswith("2.11.")
# Classes that split backwards, and that combine a forward and a backward where there are such.
SPLIT, COMBINED = ("ScheduleInterleavedZeroBubble",) * 2 if OF_2_11 else ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


def run_by_gloo(classes: dict[str, tuple[int, bool, bool]], ranks: int) -> dict[str, tuple[int, bool, bool]]:
    """Those classes of schedules, by stages a rank and whether they are a V, that PyTorch runs over gloo."""
    if not OF_2_11:
        return classes
    return {name: about for name, about in classes.items() if about[0] == 1 or not (about[1] or ranks == 1)}
