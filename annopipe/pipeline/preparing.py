"""Prepare a pipeline for calls of one signature: trace the stages, agree on what crosses, plan the combined graphs.

A stage is traced after those from which it takes, since it needs to know what they hand on; after each one its rank
tells all others, so that a stage that cannot be traced is an error on every rank and nobody waits for it.
"""

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from annopipe import pytrees
from annopipe.capturing.tape import Recorder
from annopipe.errors import AnnopipeError, PipelineError
from annopipe.graphs.bucketing import bucket
from annopipe.graphs.recompute_choice import RecomputeChoice, region_paths
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.graphs.tracing import trace
from annopipe.ordering.combining import StageNodeCosts
from annopipe.ordering.registry import Policy
from annopipe.pipeline.calls.microbatch_calls import Call, check_lengths
from annopipe.pipeline.calls.microbatches import BatchDims
from annopipe.pipeline.calls.names import accepted, check_names, names_taken
from annopipe.pipeline.comparing import compare_beside, groups_of
from annopipe.pipeline.evaluation import forward_only, without_gradients
from annopipe.pipeline.interpreter import Interpreter, Operation
from annopipe.pipeline.nano_tracing import NanoBatchGraphs, nano_batches_of, traced_parts
from annopipe.pipeline.ranks.acknowledgements import acknowledged
from annopipe.pipeline.ranks.messages import Messages
from annopipe.pipeline.ranks.peers import AgreedError, Peers
from annopipe.pipeline.ranks.routing import Routing
from annopipe.pipeline.recomputing import check_regions
from annopipe.pipeline.stage_forms import Forms, stage_forms
from annopipe.pipeline.stages.batch_loss import BatchLoss, check_batch_loss
from annopipe.pipeline.stages.boundary import Boundary, Link
from annopipe.pipeline.stages.combined import Combined, Parts, combinations
from annopipe.pipeline.stages.liveness import gradient_needs, only_live, returning_gradients
from annopipe.pipeline.stages.microbatch_loss import MicrobatchLoss, traced_loss
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.actions import BACKWARDS
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.schedule_class import Schedule

__all__ = ["Ready", "Settings", "prepare"]

Loss = Callable[[Any, Any], torch.Tensor]
_LOG = logging.getLogger("annopipe")
Ready = tuple[dict[int, LocalStage], Interpreter, dict[Parts, Combined]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What stays the same for all calls of a pipeline.

    batch_dims: the dimension of the batch by name of argument.
    nano_auxiliary: how the auxiliary losses of nano-batches count; None where there must be none.
    recompute: what the backward of each stage computes again.
    evaluates: whether these are for calls that only want the outputs of the last stage.
    spreads_lists: whether a stage that returns a list calls the next one with its elements.
    compiles: whether stretches of computation are compiled.
    recorder: what captures runs of computation as CUDA graphs; None: nothing does.
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
    bucket_bytes: int | None = None
    evaluates: bool = False
    spreads_lists: bool = False
    batch_dims: BatchDims = dataclasses.field(default_factory=dict)
    nano_auxiliary: str | None = None
    compiles: bool = False
    recorder: Recorder | None = None


@dataclasses.dataclass(frozen=True)
class _StageFacts:
    """What a rank tells the others after a stage was traced.

    boundary: what it hands on; None where no stage takes it.
    needs: for each tensor that the stages before hand on, what its gradient depends on; None where it has none.
    outside: the outputs of which a loss over the whole batch gives gradients.
    accepts: the keyword arguments, of those that this rank was called with, that the stage takes.
    takes: what it can be given in a step, by name; None where that is any name.
    given: the keyword arguments that this rank was called with.
    has_loss: whether it has a loss of its own, or an auxiliary one.
    regions: the paths of the regions in its forward.
    lengths: of the batch, in what this rank's call was cut from.
    """

    boundary: Boundary | None = None
    needs: tuple[frozenset[str] | None, ...] = ()
    outside: frozenset[str] = frozenset()
    accepts: frozenset[str] = frozenset()
    takes: frozenset[str] | None = frozenset()
    given: frozenset[str] = frozenset()
    has_loss: bool = False
    regions: tuple[str, ...] = ()
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    error: str = ""


def prepare(
    settings: Settings,
    modules: Mapping[int, nn.Module],
    call: Call,
    messages: Messages,
    operations: Mapping[str, Operation],
) -> Ready:
    """The stages and the interpreter of this rank.

    Raises PipelineError on every rank when a stage cannot be traced or planned on one.
    """
    begun_s, who = time.perf_counter(), settings.peers.name(settings.rank)
    tracing = _Tracing(settings, modules, call)
    heard = tracing.all_stages()
    _check_heard(settings, heard)
    if not settings.evaluates:
        check_regions(settings.recompute, [facts.regions for facts in heard])
    placement = settings.schedule.placement
    links = _links(placement, heard, tracing.device)
    arriving = [set(facts.outside) for facts in heard]
    for (source, _), link in links.items():
        arriving[source].update(link.returning_ports)
    parts = traced_parts(settings.schedule, call, settings.batch_dims, modules, settings.peers, tracing.again)
    make = partial(tracing.local_stages, parts, arriving, [len(facts.needs) for facts in heard])
    stages = settings.peers.together(make, "making stages ready")
    compare_beside(settings.peers, stages, settings.plan_group)
    actions = settings.schedule.ranks[settings.rank]
    plan = partial(combinations, actions, stages, settings.policy, settings.costs, settings.plan_group)
    combined = settings.peers.together(plan, "planning combined graphs")
    compiles, recorder, fixed = settings.compiles, settings.recorder, settings.fixed_sums
    make_forms = partial(stage_forms, actions, stages, combined, compiles, recorder, fixed_sums=fixed)
    forms = settings.peers.together(make_forms, "compiling") if compiles or recorder is not None else Forms()
    settings.peers.include(groups_of(stages.values(), combined.values()))
    _LOG.info("%s: stages %s ready after %.1f s", who, [*stages], time.perf_counter() - begun_s)
    taken = acknowledged(settings.schedule.ranks, placement, settings.rank)
    routing = Routing(placement, links, messages, taken)
    return stages, Interpreter(actions, stages, routing, combined, operations, forms), combined


class _Tracing:
    """The tracing of this rank's stages for one signature.

    Args:
        settings, modules, call: of the pipeline, and of one microbatch or nano-batch.
        only: the stages that are wanted, with all before them; None is all.
        purpose: what it is for, for messages.
    """

    def __init__(
        self,
        settings: Settings,
        modules: Mapping[int, nn.Module],
        call: Call,
        only: AbstractSet[int] | None = None,
        purpose: str = "",
    ) -> None:
        self._settings, self._modules, self._call = settings, modules, call
        self._only, self._purpose = only, purpose
        self._placement = settings.schedule.placement
        self.device = _device(modules, call)
        self.traced: dict[int, StageGraphs] = {}
        self._handed: dict[int, int] = {}  # by stage, how many arguments it gets from the stages before

    def all_stages(self) -> list[_StageFacts]:
        """What the ranks tell of all stages, by stage; this rank's are traced.

        Raises AgreedError, on every rank, for the first one that cannot be traced.
        """
        heard: dict[int, _StageFacts] = {}
        depth_of, rank_of = self._placement.depth_of, self._placement.rank_of
        for depth in sorted(set(depth_of)):
            # None takes from another: their ranks trace at the same time.
            indices = [i for i, at in enumerate(depth_of) if at == depth and (self._only is None or i in self._only)]
            told = {index: self._trace(index, heard) for index in indices if index in self._modules}
            for index in indices:
                facts, failure = told.get(index, (_StageFacts(), None))
                heard[index] = self._settings.peers.broadcast(facts, rank_of[index], f"trace stage {index}")
                if heard[index].error:
                    purpose = f", {self._purpose}" if self._purpose else ""
                    said = f"stage {index} on rank {rank_of[index]}{purpose}: {heard[index].error}"
                    raise AgreedError(said) from failure
        return [heard[index] for index in sorted(heard)]

    def again(self, call: Call, stages: AbstractSet[int], purpose: str) -> Mapping[int, StageGraphs]:
        """This rank's graphs of some stages for a nano-batch, without the loss."""
        settings = dataclasses.replace(self._settings, loss_fn=None)
        tracing = _Tracing(settings, self._modules, call, stages, purpose)
        tracing.all_stages()
        return tracing.traced

    def local_stages(
        self, parts: NanoBatchGraphs, arriving: Sequence[AbstractSet[str]], inside: Sequence[int]
    ) -> dict[int, LocalStage]:
        """This rank's stages, to be run.

        Args:
            parts: the graphs of nano-batches.
            arriving: by stage, the outputs whose gradients come.
            inside: by stage, how many tensors the stages before hand over.
        """
        return {
            index: self._local_stage(index, parts, frozenset(arriving[index]), inside[index]) for index in self.traced
        }

    def _local_stage(self, index: int, parts: NanoBatchGraphs, arriving: frozenset[str], inside: int) -> LocalStage:
        """A traced stage, to be run."""
        settings, is_output = self._settings, index in self._placement.output_stages
        loss_fn, graphs = self._batch_loss_fn(index), only_live(self.traced[index], arriving)
        nano_loss = self._nano_loss(index, parts)
        if nano_loss is not None:
            arriving |= nano_loss.differentiated
        return LocalStage(
            index,
            self._modules[index],
            _in_buckets(graphs, settings.bucket_bytes),
            inside=inside,
            handed=self._handed[index],
            keeps_outputs=settings.evaluates and is_output,
            fixed_sums=settings.fixed_sums,
            batch_loss=BatchLoss(index, graphs, loss_fn) if loss_fn is not None else None,
            first=self._placement.microbatches_of(index, settings.schedule.microbatches).start,
            nano_batches=nano_batches_of(index, graphs, arriving, parts, settings.schedule, settings.nano_auxiliary),
            nano_loss=nano_loss,
        )

    def _nano_loss(self, index: int, parts: NanoBatchGraphs) -> MicrobatchLoss | None:
        """The loss of microbatches that run as nano-batches."""
        of_stage = next((graphs for (stage, _), ((_, graphs), *_) in parts.items() if stage == index), None)
        if (loss_fn := self._loss_fn(index)) is None or of_stage is None:
            return None
        whole, part = Boundary.of(self.traced[index], index), Boundary.of(of_stage, index)
        return MicrobatchLoss(index, traced_loss(whole, part, loss_fn, self._call.target, self.device))

    def _trace(self, index: int, heard: Mapping[int, _StageFacts]) -> tuple[_StageFacts, AnnopipeError | None]:
        told = [heard[source].boundary for source in self._placement.predecessors[index]]
        before = [boundary for boundary in told if boundary is not None]
        who, what = self._settings.peers.name(self._settings.rank), "eval" if self._settings.evaluates else "step"
        _LOG.info("%s: tracing stage %d of %d for %s", who, index, self._placement.stages, what)
        try:
            if (loss_fn := self._batch_loss_fn(index)) is not None:
                check_batch_loss(loss_fn, self._call.target)
            graphs = self.traced[index] = self._graphs(index, before, self._loss_fn(index))
            return self._facts_of(index, graphs, sum(len(boundary.tensors) for boundary in before)), None
        except AnnopipeError as error:
            if self._lacks_target(index, before):
                said = f"step was called without target on the rank of the last stage, and loss_fn takes one ({error})"
            else:
                said = f"{type(error).__name__}: {error}{_told(before, self._placement.predecessors[index])}"
            return _StageFacts(error=said), error

    def _graphs(self, index: int, before: Sequence[Boundary], loss_fn: Loss | None) -> StageGraphs:
        module, call = self._modules[index], self._call
        handed: tuple[Any, ...] = ()
        for boundary in before:
            examples = [leaf.example(self.device) for leaf in boundary.tensors]
            handed += boundary.call_with(examples, spreads_lists=self._settings.spreads_lists)
        args = handed if self._placement.predecessors[index] else call.args
        self._handed[index] = len(handed)
        kwargs = accepted(module, call.kwargs, len(handed))
        if self._settings.evaluates:
            with without_gradients(module):
                return forward_only(trace(module, args, kwargs))
        target = call.target if loss_fn is not None else None
        return trace(module, args, kwargs, loss_fn, target, recompute=self._settings.recompute[index])

    def _loss_fn(self, index: int) -> Loss | None:
        """What is traced behind a stage."""
        is_last = index in self._placement.output_stages and index not in self._placement.batch_wide
        return self._settings.loss_fn if is_last else None

    def _batch_loss_fn(self, index: int) -> Loss | None:
        """What is called with the outputs of all microbatches of a stage."""
        placement, settings = self._placement, self._settings
        whole = index in placement.batch_wide and index in placement.output_stages
        return settings.loss_fn if whole and not settings.evaluates else None

    def _lacks_target(self, index: int, before: Sequence[Boundary]) -> bool:
        """Whether a stage that cannot be traced with the loss can be without it, and was given no target."""
        if self._loss_fn(index) is None or self._call.target is not None:
            return False
        try:
            self._graphs(index, before, None)
        except AnnopipeError:
            return False
        return True

    def _facts_of(self, index: int, graphs: StageGraphs, handed: int) -> _StageFacts:
        placement, call, backward = self._placement, self._call, graphs.backward
        if placement.copies > 1:
            _check_copied(index, graphs)
        needs, has_batch_loss = gradient_needs(backward), self._batch_loss_fn(index) is not None
        ports = {p.source: p.name for p in backward.outputs if p.role == "input_grad"} if backward else {}
        tangents = frozenset(p.source for p in backward.inputs if p.role == "tangent") if backward else frozenset[str]()
        return _StageFacts(
            Boundary.of(graphs, index) if placement.successors[index] else None,
            tuple(needs[ports[path]] if path in ports else None for path in graphs.arguments.paths[:handed]),
            tangents if has_batch_loss else frozenset(),
            frozenset(accepted(self._modules[index], call.kwargs, self._handed[index])),
            names_taken(self._modules[index], self._handed[index]),
            frozenset(call.kwargs),
            bool(graphs.layout.losses) or has_batch_loss,
            region_paths(graphs.forward) if self._settings.recompute[index].regions else (),
            dict(call.lengths),
        )


def _told(before: Sequence[Boundary], sources: Sequence[int]) -> str:
    """What the stages before hand on, for a message about the stage that takes it."""
    if not before:
        return ""
    found = [f"stage {source} {boundary.described}" for source, boundary in zip(sources, before, strict=True)]
    return f"\n  it was called with what {' and '.join(found)}"


def _check_copied(index: int, graphs: StageGraphs) -> None:
    """The copies of a stage see different microbatches: what they put into buffers would differ."""
    updated = next((port.source for port in graphs.forward.outputs if port.role == "buffer_update"), None)
    if updated is not None:
        raise PipelineError(
            f"stage {index} updates its buffer {updated}, and that of the stage's other copy would come to differ: "
            "take a schedule with one copy of the model, or update it between steps from all ranks"
        )


def _check_heard(settings: Settings, heard: Sequence[_StageFacts]) -> None:
    rank_of = settings.schedule.placement.rank_of
    check_lengths([(rank, facts.lengths) for rank, facts in zip(rank_of, heard, strict=True)])
    given = frozenset[str]().union(*(facts.given for facts in heard))
    if unknown := sorted(given.difference(*(facts.accepts for facts in heard))):
        raise AgreedError(
            f"no stage has a parameter named {', '.join(unknown)}: keyword arguments go to the stages that name them; "
            "of the parameters with defaults of a model that ap.split cuts, only those in its inputs=[...] reach stages"
        )
    check_names(settings.batch_dims, [facts.takes for facts in heard])
    actions = [action for rank in settings.schedule.ranks for action in rank]
    kinds = {part.kind for action in actions for part in action.singles}
    if kinds.intersection(BACKWARDS) and not any(facts.has_loss for facts in heard):
        raise AgreedError(
            "the schedule has backwards and there is no loss: give Pipeline a loss_fn, or call ap.auxiliary_loss in a "
            "stage; for forwards alone, call eval"
        )


def _in_buckets(graphs: StageGraphs, size_bytes: int | None) -> StageGraphs:
    """The graphs with few large collectives where parameters are gathered and gradients reduced."""
    if size_bytes is None:
        return graphs
    parts = (graphs.unshard, graphs.reduce_grad)
    unshard, reduce_grad = (bucket(part, size_bytes=size_bytes) if part is not None else None for part in parts)
    return dataclasses.replace(graphs, unshard=unshard, reduce_grad=reduce_grad)


def _links(placement: Placement, heard: Sequence[_StageFacts], device: torch.device) -> dict[tuple[int, int], Link]:
    """What crosses each edge, with the gradients that a loss depends on."""
    ports = [[leaf.port for leaf in facts.boundary.tensors] if facts.boundary else [] for facts in heard]
    returning = returning_gradients(
        placement, [facts.needs for facts in heard], ports, [facts.outside for facts in heard]
    )
    boundaries = ((edge, heard[edge[0]].boundary) for edge in placement.edges)
    return {edge: Link(boundary, returning[edge], device) for edge, boundary in boundaries if boundary is not None}


def _device(modules: Mapping[int, nn.Module], call: Call) -> torch.device:
    """That of this rank's stages, which are all on one; without parameters, that of what it was called with."""
    own = (tensor for module in modules.values() for tensor in (*module.parameters(), *module.buffers()))
    given = (leaf for leaf in pytrees.tree_leaves((call.args, call.kwargs, call.target)) if torch.is_tensor(leaf))
    return next((tensor.device for tensor in itertools.chain(own, given)), torch.device("cpu"))
