"""A training step of each variant as a function to time, on our runtime and on torch.distributed.pipelining's."""

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
from benchmarks.moe.groups import Groups, sum_gradients
from benchmarks.moe.marks import Clock, marked
from benchmarks.moe.model import example_input, mean_square, stage_module
from benchmarks.moe.variant import Variant

__all__ = ["Step", "apart", "batch", "eager_step", "our_step", "schedule_of", "stages_of"]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, and the modules of this rank, whose gradients it adds to; a clock where its phases are measured."""

    run: Callable[[], Any]
    modules: Sequence[nn.Module]
    clock: Clock | None = None


def schedule_of(variant: Variant, case: MoeCase) -> ap.Schedule:
    """The schedule of a variant for the ranks of one pipeline, before anything is split into nano-batches."""
    found = ap.schedule(variant.schedule, ranks=case.pipeline_ranks, microbatches=case.microbatches)
    return apart(found) if variant.policy is None else found


def apart(schedule: ap.Schedule) -> ap.Schedule:
    """The schedule with what it combines run as graphs of their own, one after the other.

    >>> paired = ap.schedule("dualpipev", ranks=1, microbatches=3)
    >>> [str(action) for action in paired.ranks[0]][3:6]
    ['1B0', '(1F1;0B0)OVERLAP_F_B', '(0F2;1B1)OVERLAP_F_B']
    >>> [str(action) for action in apart(paired).ranks[0]][3:8]
    ['1B0', '1F1', '0B0', '0F2', '1B1']
    """
    rows = [[single for action in actions for single in action.singles] for actions in schedule.ranks]
    return ap.Schedule.of(schedule.placement, schedule.microbatches, rows, schedule.name)


def stages_of(
    schedule: ap.Schedule, case: MoeCase, seconds: float, groups: Groups, skew: float = 1.0
) -> dict[int, nn.Module]:
    """The modules of this rank's stages: together all schedules have the same layers."""
    placement = schedule.placement
    blocks = case.layers * case.pipeline_ranks // placement.stages
    held = placement.stages_on[groups.pipeline_rank]
    return {stage: stage_module(case, blocks, stage, seconds, groups.experts, skew) for stage in held}


def our_step(
    variant: Variant,
    schedule: ap.Schedule,
    modules: dict[int, nn.Module],
    case: MoeCase,
    groups: Groups,
    costs: StageNodeCosts,
) -> Step:
    """A step of ``ap.Pipeline``, prepared; with a clock where phases are compared."""
    clock = Clock() if case.has_phases(variant) else None
    stages = [modules.get(stage) for stage in range(schedule.placement.stages)]
    pipe = ap.Pipeline(
        stages,
        schedule if clock is None else marked(schedule),
        groups.pipeline,
        mean_square,
        variant.policy or "auto",
        costs=costs,
        plan_group=groups.experts,
        compile="inductor" if variant.compiled else None,
    )
    inputs, target = batch(case)
    own = list(modules.values())
    if clock is None:
        pipe.prepare(inputs, target=target)
        return Step(_summing(partial(pipe.step, inputs, target=target), own, groups), own)
    clock.attach(pipe)
    pipe.prepare(inputs, target=target)
    run = _summing(partial(pipe.step, inputs, target=target), own, groups)
    return Step(partial(clock.started, run), own, clock)


def eager_step(
    variant: Variant,
    modules: dict[int, nn.Module],
    case: MoeCase,
    groups: Groups,
    attached: StageNodeCosts | None = None,
) -> Step:
    """A step of the eager runtime; of ours, with the same schedule object, where costs are given."""
    schedule = ap.schedule(variant.schedule, ranks=case.pipeline_ranks, microbatches=case.microbatches)
    attach = None
    if attached is not None:
        policy = variant.policy or "auto"
        attach = partial(ap.attach, policy=policy, costs=attached, plan_group=groups.experts)
    run = eager_runtime.eager_step(
        variant.schedule, schedule, modules, mean_square, batch(case), groups.pipeline, attach
    )
    own = list(modules.values())
    return Step(_summing(run, own, groups), own)


def _summing(run: Callable[[], Any], modules: Sequence[nn.Module], groups: Groups) -> Callable[[], Any]:
    """The step, and the sum of its gradients over the copies of the model, where there are several."""
    if groups.data is None:
        return run

    def both() -> None:
        run()
        sum_gradients(modules, groups)

    return both


def batch(case: MoeCase) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the target of a step."""
    parts = [example_input(case, seed) for seed in range(case.microbatches)]
    whole = torch.cat(parts)
    return whole, whole.flip(-1)
