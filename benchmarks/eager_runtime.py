"""The eager runtime of torch.distributed.pipelining, to compare with: its schedules under our names, and a step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

import annopipe as ap

__all__ = ["EAGER_SCHEDULES", "Attach", "eager_step"]

_OF_ONE_STAGE = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}
_CLASSES = {
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
EAGER_SCHEDULES = (*_OF_ONE_STAGE, *_CLASSES)
Attach = Callable[[Any], Any]


def eager_step(
    name: str,
    schedule: ap.Schedule,
    modules: Mapping[int, nn.Module],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    batch: tuple[torch.Tensor, torch.Tensor],
    group: dist.ProcessGroup | None = None,
    attach: Attach | None = None,
) -> Callable[[], Any]:
    """A step of the eager runtime; losses are summed, as ours are.

    Args:
        name: one of EAGER_SCHEDULES.
        schedule: ours of that name.
        modules: the stages of this rank.
        loss_fn: of a microbatch.
        batch: the input and the target of a step.
        group: the ranks of the pipeline.
        attach: called with the schedule object, to run it in another way.
    """
    count = schedule.placement.stages
    stages: list[Any] = [
        pipelining.PipelineStage(module, stage, count, torch.device("cpu"), group=group)
        for stage, module in modules.items()
    ]
    given: dict[str, Any] = {"n_microbatches": schedule.microbatches, "loss_fn": loss_fn, "scale_grads": False}
    one = _OF_ONE_STAGE.get(name)
    runtime: Any = _CLASSES[name](stages, **given) if one is None else one(stages[0], **given)
    if attach is not None:
        attach(runtime)
    inputs, target = batch
    arguments = (inputs,) if 0 in modules else ()
    wanted = target if count - 1 in modules else None
    return lambda: runtime.step(*arguments, target=wanted, return_outputs=False)
