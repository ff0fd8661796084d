"""What all ranks of a pipeline compare at every step: whether they were called alike, with one small message."""

import hashlib

import torch
import torch.distributed as dist

from annopipe.errors import PipelineError
from annopipe.ordering.gathering import message_device

__all__ = ["agreed_text", "digest"]


def digest(text: str) -> int:
    """A number for a text that fits into a tensor.

    >>> digest("a") == digest("a"), digest("a") == digest("b"), digest("a") < 2**63
    (True, False, True)
    """
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def agreed_text(own: str, schedule_digest: int, group: dist.ProcessGroup | None) -> str:
    """One text for what all ranks were called with; the same on all of them, so that all know when it is new.

    Raises PipelineError when the ranks have different schedules.
    """
    mine = torch.tensor([digest(own), schedule_digest])
    if group is None:
        return str(int(mine[0]))
    mine = mine.to(message_device(group))
    everyone = mine.new_empty(2 * dist.get_world_size(group))
    dist.all_gather_into_tensor(everyone, mine, group=group)
    found = everyone.tolist()
    calls, schedules = found[::2], found[1::2]
    if len(set(schedules)) > 1:
        other = next(rank for rank, schedule in enumerate(schedules) if schedule != schedules[0])
        raise PipelineError(f"ranks 0 and {other} have different schedules; give all ranks the same")
    return " ".join(map(str, calls))
