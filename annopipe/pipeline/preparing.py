"""Prepare a pipeline for calls of one signature: trace the stages, agree on what crosses, plan the combined graphs.

The stages are traced one after the other, since each needs to know what the one before hands on; after each one its
ranks tell all others, so that a stage that cannot be traced is an error on every rank and nobody waits for it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from annopipe.errors import AnnopipeError, PipelineError
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.graphs.tracing import trace
from annopipe.ordering.combining import StageNodeCosts
from annopipe.ordering.registry import Policy
from annopipe.pipeline.boundary import Boundary, Link
from annopipe.pipeline.combined import Combined, Parts, parts_of
from annopipe.pipeline.interpreter import Interpreter, Operation
from annopipe.pipeline.messages import Messages
from annopipe.pipeline.stage import LocalStage
from annopipe.scheduling.schedule import Schedule

__all__ = ["Call", "Settings", "prepare", "talk"]

Loss = Callable[[Any, Any], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Call:
    """One microbatch of a step, as far as this rank has it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """What stays the same for all calls of a pipeline."""

    schedule: Schedule
    rank: int
    group: dist.ProcessGroup | None
    plan_group: dist.ProcessGroup | None
    loss_fn: Loss | None
    policy: str | Policy
    costs: StageNodeCosts | None


@dataclasses.dataclass(frozen=True)
class _News:
    """What a rank tells the others after a stage was traced.

    returning: of what the stage before hands on, the positions whose gradients this stage gives back.
    """

    boundary: Boundary | None = None
    returning: tuple[int, ...] = ()
    error: str = ""


def prepare(
    settings: Settings,
    modules: Mapping[int, nn.Module],
    call: Call,
    messages: Messages,
    operations: Mapping[str, Operation],
) -> tuple[dict[int, LocalStage], Interpreter, dict[Parts, Combined]]:
    """The stages and the interpreter of this rank.

    Raises PipelineError on every rank when a stage cannot be traced or planned on one.
    """
    placement = settings.schedule.placement
    last = placement.stages - 1
    stages: dict[int, LocalStage] = {}
    links: dict[int, Link] = {}
    before: Boundary | None = None
    for index in range(placement.stages):
        news, failure = _News(), None
        if index in modules:
            device = _device(modules[index])
            try:
                graphs = _traced(settings, modules[index], call, before, device, is_last=index == last)
                stages[index] = LocalStage(index, modules[index], graphs)
                news = _news(stages[index], before, index, is_last=index == last)
            except AnnopipeError as error:
                failure, news = error, _News(error=f"{type(error).__name__}: {error}")
        heard = talk(news, placement.rank_of[index], settings)
        if heard.error:
            raise PipelineError(f"stage {index} on rank {placement.rank_of[index]}: {heard.error}") from failure
        if before is not None:
            links[index - 1] = Link(before, heard.returning, _any_device(modules))
        before = heard.boundary
    combined = _combined(settings, stages)
    actions = settings.schedule.ranks[settings.rank]
    return stages, Interpreter(actions, placement, stages, links, combined, messages, operations), combined


def talk(news: Any, source: int, settings: Settings) -> Any:
    """What one rank says, on all of them."""
    if settings.group is None:
        return news
    box = [news]
    dist.broadcast_object_list(box, group=settings.group, group_src=source)
    return box[0]


def _traced(
    settings: Settings, module: nn.Module, call: Call, before: Boundary | None, device: torch.device, *, is_last: bool
) -> StageGraphs:
    args = call.args if before is None else before.call_with([leaf.example(device) for leaf in before.tensors])
    loss_fn = settings.loss_fn if is_last else None
    return trace(module, args, accepted(module, call.kwargs), loss_fn, call.target if loss_fn is not None else None)


def accepted(module: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those keyword arguments that the module's forward has a name for."""
    if not kwargs:
        return {}
    parameters = inspect.signature(module.forward).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(kwargs)
    return {name: value for name, value in kwargs.items() if name in parameters}


def _news(stage: LocalStage, before: Boundary | None, index: int, *, is_last: bool) -> _News:
    crossing = range(len(before.tensors)) if before is not None else range(0)
    returning = tuple(at for at in crossing if stage.input_gradients[at] is not None)
    return _News(None if is_last else Boundary.of(stage.graphs, index), returning)


def _combined(settings: Settings, stages: Mapping[int, LocalStage]) -> dict[Parts, Combined]:
    """One combined graph for every distinct combination, in the order in which the schedule has them first."""
    wanted = dict.fromkeys(parts_of(action) for action in settings.schedule.ranks[settings.rank] if action.parts)
    return {
        parts: Combined(
            parts,
            [stages[stage].graph(kind) for kind, stage in parts],
            settings.policy,
            settings.costs,
            settings.plan_group,
        )
        for parts in wanted
    }


def _device(module: nn.Module) -> torch.device:
    tensors = [*module.parameters(), *module.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def _any_device(modules: Mapping[int, nn.Module]) -> torch.device:
    devices: Sequence[torch.device] = [_device(module) for module in modules.values()]
    return devices[0] if devices else torch.device("cpu")
