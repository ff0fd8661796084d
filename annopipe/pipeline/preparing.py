"""Prepare a pipeline for calls of one signature: trace the stages, agree on what crosses, plan the combined graphs.

The stages are traced one after the other, since each needs to know what the one before hands on; after each one its
ranks tell all others, so that a stage that cannot be traced is an error on every rank and nobody waits for it.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from annopipe import pytrees
from annopipe.errors import AnnopipeError
from annopipe.graphs.ops import group_name, traits
from annopipe.graphs.process_groups import find_group
from annopipe.graphs.recompute_choice import RecomputeChoice, region_paths
from annopipe.graphs.stage_graph import body
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.graphs.tracing import trace
from annopipe.ordering.combining import StageNodeCosts
from annopipe.ordering.registry import Policy
from annopipe.pipeline.acknowledgements import acknowledged
from annopipe.pipeline.boundary import Boundary, Link
from annopipe.pipeline.combined import Combined, Parts, combinations, parts_of
from annopipe.pipeline.evaluation import forward_only, without_gradients
from annopipe.pipeline.interpreter import Interpreter, Operation
from annopipe.pipeline.liveness import gradient_needs, only_live, returning_gradients
from annopipe.pipeline.messages import Messages
from annopipe.pipeline.peers import AgreedError, Peers
from annopipe.pipeline.recomputing import check_regions
from annopipe.pipeline.stage import LocalStage
from annopipe.scheduling.actions import BACKWARDS
from annopipe.scheduling.schedule_class import Schedule

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
    """What stays the same for all calls of a pipeline.

    recompute: what the backward of each stage computes again.
    evaluates: whether these are for calls that only want the outputs of the last stage.
    """

    schedule: Schedule
    rank: int
    peers: Peers
    plan_group: dist.ProcessGroup | None
    loss_fn: Loss | None
    policy: str | Policy
    costs: StageNodeCosts | None
    recompute: Sequence[RecomputeChoice]
    fixed_sums: bool = False
    evaluates: bool = False


@dataclasses.dataclass(frozen=True)
class _News:
    """What a rank tells the others after a stage was traced.

    boundary: what it hands on; None on the last stage.
    needs: for each tensor that the stage before hands on, what its gradient depends on; None where it has none.
    accepts: the keyword arguments, of those that this rank was called with, that the stage takes.
    given: the keyword arguments that this rank was called with.
    has_loss: whether it has a loss of its own, or an auxiliary one.
    regions: the paths of the regions in its forward.
    """

    boundary: Boundary | None = None
    needs: tuple[frozenset[str] | None, ...] = ()
    accepts: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    has_loss: bool = False
    regions: tuple[str, ...] = ()
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
    placement, device = settings.schedule.placement, _device(modules, call)
    traced: dict[int, StageGraphs] = {}
    heard: list[_News] = []
    for index in range(placement.stages):
        news, failure = _News(), None
        before = heard[-1].boundary if heard else None
        if index in modules:
            try:
                traced[index] = _traced(settings, modules[index], call, before, index, device)
                news = _news(settings, traced[index], before, call, index)
            except AnnopipeError as error:
                hint = _missing_target(settings, modules[index], call, before, index, device)
                failure, news = error, _News(error=f"{type(error).__name__}: {error}{hint}")
        heard.append(talk(news, placement.rank_of[index], settings, index))
        if heard[-1].error:
            raise AgreedError(f"stage {index} on rank {placement.rank_of[index]}: {heard[-1].error}") from failure
    _check_heard(settings, heard)
    if not settings.evaluates:
        check_regions(settings.recompute, [news.regions for news in heard])
    links = _links(heard, device)
    arriving = {index: frozenset(link.returning_ports) for index, link in links.items()}
    stages = {
        index: LocalStage(
            index,
            modules[index],
            only_live(graphs, arriving.get(index, frozenset())),
            inside=len(heard[index].needs),
            keeps_outputs=settings.evaluates and index == placement.stages - 1,
            fixed_sums=settings.fixed_sums,
        )
        for index, graphs in traced.items()
    }
    actions = settings.schedule.ranks[settings.rank]
    plan = partial(combinations, actions, stages, settings.policy, settings.costs, settings.plan_group)
    combined = settings.peers.together(plan, "planning combined graphs")
    groups = groups_of(stages.values(), combined.values())
    settings.peers.include(groups)
    settings.peers.together(partial(settings.peers.compare, groups), "comparing calls with the ranks of other groups")
    taken = acknowledged(settings.schedule.ranks, placement, settings.rank)
    return stages, Interpreter(actions, placement, stages, links, combined, messages, operations, taken), combined


def _missing_target(
    settings: Settings, module: nn.Module, call: Call, before: Boundary | None, index: int, device: torch.device
) -> str:
    """A hint for a stage that can be traced without the loss, which was given no target."""
    is_last = index == settings.schedule.placement.stages - 1
    if not is_last or settings.loss_fn is None or call.target is not None:
        return ""
    try:
        _traced(dataclasses.replace(settings, loss_fn=None), module, call, before, index, device)
    except AnnopipeError:
        return ""
    return "; step was called without target on this rank, that of the loss"


def _check_heard(settings: Settings, heard: Sequence[_News]) -> None:
    given = frozenset[str]().union(*(news.given for news in heard))
    if unknown := sorted(given.difference(*(news.accepts for news in heard))):
        raise AgreedError(
            f"no stage has a parameter named {', '.join(unknown)}: keyword arguments go to the stages that name them"
        )
    kinds = {kind for rank in settings.schedule.ranks for action in rank for kind, _ in parts_of(action)}
    kinds |= {action.kind for rank in settings.schedule.ranks for action in rank}
    if kinds.intersection(BACKWARDS) and not any(news.has_loss for news in heard):
        raise AgreedError(
            "the schedule has backwards and there is no loss: give Pipeline a loss_fn, or call ap.auxiliary_loss in a "
            "stage; for forwards alone, call eval"
        )


def _links(heard: Sequence[_News], device: torch.device) -> dict[int, Link]:
    """What crosses behind each stage but the last, with the gradients that a loss depends on."""
    boundaries = [news.boundary for news in heard]
    ports = [[leaf.port for leaf in boundary.tensors] if boundary else [] for boundary in boundaries]
    returning = returning_gradients([news.needs for news in heard], ports)
    pairs = zip(boundaries, returning[1:], strict=False)
    return {index: Link(b, back, device) for index, (b, back) in enumerate(pairs) if b is not None}


def talk(news: Any, source: int, settings: Settings, index: int) -> Any:
    """What one rank says of a stage, on all of them."""
    return settings.peers.broadcast(news, source, f"trace stage {index}")


def _traced(
    settings: Settings, module: nn.Module, call: Call, before: Boundary | None, index: int, device: torch.device
) -> StageGraphs:
    args = call.args if before is None else before.call_with([leaf.example(device) for leaf in before.tensors])
    kwargs = accepted(module, call.kwargs)
    if settings.evaluates:
        with without_gradients(module):
            return forward_only(trace(module, args, kwargs))
    loss_fn = settings.loss_fn if index == settings.schedule.placement.stages - 1 else None
    target = call.target if loss_fn is not None else None
    return trace(module, args, kwargs, loss_fn, target, recompute=settings.recompute[index])


def accepted(module: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those keyword arguments that the module's forward has a name for."""
    return accepted_by(inspect.signature(module.forward), kwargs) if kwargs else {}


def accepted_by(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those keyword arguments that a function of this signature takes."""
    parameters = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(kwargs)
    return {name: value for name, value in kwargs.items() if name in parameters}


def _news(settings: Settings, graphs: StageGraphs, before: Boundary | None, call: Call, index: int) -> _News:
    needs = gradient_needs(graphs.backward)
    ports = {p.source: p.name for p in graphs.backward.outputs if p.role == "input_grad"} if graphs.backward else {}
    handed = graphs.arguments.paths[: len(before.tensors)] if before is not None else ()
    return _News(
        None if index == settings.schedule.placement.stages - 1 else Boundary.of(graphs, index),
        tuple(needs[ports[path]] if path in ports else None for path in handed),
        frozenset(accepted_by(graphs.arguments.signature, call.kwargs)),
        frozenset(call.kwargs),
        bool(graphs.layout.losses),
        region_paths(graphs.forward) if settings.recompute[index].regions else (),
    )


def groups_of(stages: Iterable[LocalStage], combined: Iterable[Combined]) -> list[dist.ProcessGroup]:
    """The process groups of the collectives in the graphs."""
    graphs = [graph for stage in stages for graph in (stage.graphs.forward, stage.graphs.backward) if graph is not None]
    graphs += [found.plan.graph for found in combined]
    names = {group_name(node) for graph in graphs for node in body(graph.graph) if traits(node).launch}
    return [group for name in sorted(names) if (group := find_group(name)) is not None]


def _device(modules: Mapping[int, nn.Module], call: Call) -> torch.device:
    """That of this rank's stages, which are all on one; without parameters, that of what it was called with."""
    own = (tensor for module in modules.values() for tensor in (*module.parameters(), *module.buffers()))
    given = (leaf for leaf in pytrees.tree_leaves((call.args, call.kwargs, call.target)) if torch.is_tensor(leaf))
    return next((tensor.device for tensor in itertools.chain(own, given)), torch.device("cpu"))
