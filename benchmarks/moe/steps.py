"""A training step of each schedule as a function to time, on our runtime and on torch.distributed.pipelining's."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as upstream

import annopipe as ap
from annopipe.ordering.combining import StageNodeCosts
from benchmarks.moe.case import MoeCase
from benchmarks.moe.groups import Groups
from benchmarks.moe.model import example_input, mean_square, stage_module

__all__ = ["Step", "eager_step", "our_step", "schedule_of", "stages_of"]

_UPSTREAM = {
    "interleaved-1f1b": upstream.ScheduleInterleaved1F1B,
    "zbv": upstream.ScheduleZBVZeroBubble,
    "dualpipev": upstream.ScheduleDualPipeV,
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, and the modules of this rank, whose gradients it adds to."""

    run: Callable[[], Any]
    modules: Sequence[nn.Module]

    def gradient_sum(self) -> float:
        """The sum of the sizes of all gradients of this rank, which are then gone."""
        found = 0.0
        for module in self.modules:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    found += parameter.grad.double().abs().sum().item()
                    parameter.grad = None
        return found


def schedule_of(name: str, case: MoeCase) -> ap.Schedule:
    """The schedule of that name for the ranks of one pipeline."""
    return ap.schedule(name, ranks=case.pipeline_ranks, microbatches=case.microbatches)


def stages_of(schedule: ap.Schedule, case: MoeCase, seconds: float, groups: Groups) -> dict[int, nn.Module]:
    """The modules of this rank's stages: together all schedules have the same layers."""
    placement = schedule.placement
    blocks = case.layers * case.pipeline_ranks // placement.stages
    held = placement.stages_on[groups.pipeline_rank]
    return {stage: stage_module(case, blocks, stage, seconds, groups.experts) for stage in held}


def our_step(
    schedule: ap.Schedule, modules: dict[int, nn.Module], case: MoeCase, groups: Groups, costs: StageNodeCosts
) -> Step:
    """A step of ``ap.Pipeline``, prepared."""
    stages = [modules.get(stage) for stage in range(schedule.placement.stages)]
    pipe = ap.Pipeline(
        stages,
        schedule,
        groups.pipeline,
        mean_square,
        case.policy,
        costs=costs,
        plan_group=groups.experts,
    )
    inputs, target = _batch(case)
    pipe.prepare(inputs, target=target)
    return Step(lambda: pipe.step(inputs, target=target), list(modules.values()))


def eager_step(
    name: str, modules: dict[int, nn.Module], case: MoeCase, groups: Groups, attached: StageNodeCosts | None = None
) -> Step:
    """A step of the eager runtime; of ours, with the same schedule object, where costs are given."""
    count = schedule_of(name, case).placement.stages
    stages: list[Any] = [
        pipelining.PipelineStage(module, stage, count, torch.device("cpu"), group=groups.pipeline)
        for stage, module in modules.items()
    ]
    runtime = _UPSTREAM[name](stages, case.microbatches, loss_fn=mean_square, scale_grads=False)
    if attached is not None:
        ap.attach(runtime, case.policy, costs=attached, plan_group=groups.experts)
    inputs, target = _batch(case)
    arguments = (inputs,) if 0 in modules else ()
    wanted = target if count - 1 in modules else None
    return Step(
        lambda: runtime.step(*arguments, target=wanted, return_outputs=False),
        list(modules.values()),
    )


def _batch(case: MoeCase) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [example_input(case, seed) for seed in range(case.microbatches)]
    whole = torch.cat(parts)
    return whole, whole.flip(-1)
