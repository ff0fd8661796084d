"""A training step of each schedule as a function to time, on our runtime and on torch.distributed.pipelining's."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import annopipe as ap
from annopipe.ordering.combining import StageNodeCosts
from benchmarks import eager_runtime
from benchmarks.moe.case import MoeCase
from benchmarks.moe.groups import Groups
from benchmarks.moe.marks import Clock, marked
from benchmarks.moe.model import example_input, mean_square, stage_module

__all__ = ["Step", "batch", "eager_step", "our_step", "schedule_of", "stages_of"]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, and the modules of this rank, whose gradients it adds to; a clock where its phases are measured."""

    run: Callable[[], Any]
    modules: Sequence[nn.Module]
    clock: Clock | None = None


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
    """A step of ``ap.Pipeline``, prepared; with a clock where nano-batches are looked at."""
    clock = Clock() if case.nano_batches > 1 else None
    if clock is not None:
        schedule = marked(schedule)
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
    if clock is not None:
        clock.attach(pipe)
    inputs, target = batch(case)
    pipe.prepare(inputs, target=target)
    run = partial(pipe.step, inputs, target=target)
    if clock is None:
        return Step(run, list(modules.values()))
    return Step(partial(clock.started, run), list(modules.values()), clock)


def eager_step(
    name: str, modules: dict[int, nn.Module], case: MoeCase, groups: Groups, attached: StageNodeCosts | None = None
) -> Step:
    """A step of the eager runtime; of ours, with the same schedule object, where costs are given."""
    schedule, whole = schedule_of(name, case), batch(case)
    attach = partial(ap.attach, policy=case.policy, costs=attached, plan_group=groups.experts) if attached else None
    run = eager_runtime.eager_step(name, schedule, modules, mean_square, whole, groups.pipeline, attach)
    return Step(run, list(modules.values()))


def batch(case: MoeCase) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the target of a step."""
    parts = [example_input(case, seed) for seed in range(case.microbatches)]
    whole = torch.cat(parts)
    return whole, whole.flip(-1)
