"""``Pipeline``: train the stages of a model under a pipeline schedule, with explicit graphs, on torch.distributed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from annopipe.capturing.graphs import new_recorder
from annopipe.capturing.report import CaptureReport
from annopipe.compiling.report import CompileReport
from annopipe.errors import PipelineError
from annopipe.ordering.combining import StageNodeCosts
from annopipe.ordering.plan import OverlapPlan
from annopipe.ordering.registry import Policy
from annopipe.pipeline.calls.microbatch_calls import Call, cut_calls, split_calls
from annopipe.pipeline.calls.microbatches import BatchDims
from annopipe.pipeline.checks import (
    check_forms,
    check_inputs,
    check_kinds,
    check_loss,
    check_made,
    check_nano_auxiliary,
    check_transport,
    facts_of,
    one_per_stage,
)
from annopipe.pipeline.interpreter import Operation
from annopipe.pipeline.preparing import Settings
from annopipe.pipeline.ranks.messages import Messages
from annopipe.pipeline.ranks.peers import Peers, place_in
from annopipe.pipeline.recomputing import StageRecompute, recompute_choices
from annopipe.pipeline.running import Runner
from annopipe.pipeline.stages.batch_loss import Scale
from annopipe.pipeline.stages.combined import Parts
from annopipe.pipeline.tied import TiedParameters
from annopipe.pipeline.ties import noted_ties, with_copies
from annopipe.scheduling.actions import BUILTIN_KINDS
from annopipe.scheduling.lowering.passes import with_messages
from annopipe.scheduling.schedule_class import Schedule
from annopipe.tuning.run_config import RunConfig

__all__ = ["Pipeline"]

T = TypeVar("T")


class Pipeline:
    """The stages of a model under a schedule; every rank of the pipeline makes one and calls the same methods.

    A stage that returns a tuple calls the next one with its elements; any other value is the next one's argument.
    Stages run as traced graphs: gradients are those of the unsplit model, and modules need not inherit from anything.
    Between steps, shapes, modes, hooks, ``requires_grad`` and the Python values that a forward or the loss reads may
    change (attributes of modules, what a loss closes over; not globals): what is new is traced, once.
    What is random in a forward is drawn from this rank's generator when it runs, and is the same in its backward.
    Buffers are updated once for every microbatch, in the order of its forwards.

    Args:
        stages: one module per stage of the schedule, None where another rank holds it. For two copies of the model: one
            per stage of one copy, on both ranks that hold it, with the same values.
        schedule: with or without messages; from ``lowered(parameters=True)``, it says when stages gather sharded
            parameters and reduce gradients (else at first use, and when the step ends).
        group: the ranks of the pipeline, None for all; rank r of the group holds the stages of rank r of the placement.
        loss_fn: ``loss_fn(output, target)`` per microbatch; gradients are those of the sum of the losses. It takes the
            output of the last stage; of a placement whose last stage is batch-wide, those of the whole batch at once.
        policy: how combined graphs are ordered: see ``annopipe.overlap``.
        costs: what policies assume about nodes, as for ``ap.costs.actions``; None is the roofline of this device.
        plan_group: the ranks that run the same collectives as this one, such as the expert-parallel group, and so must
            order combined graphs alike; on all of its ranks, or on none.
        batch_dims: the dimension of the batch by name of argument ("x", "masks.0", "target"), 0 where not named; None:
            every microbatch gets the whole, as it must for scalars and offsets. The same on all ranks.
        tied: parameters that are one although two ranks hold them, as "stage.name": ``{"3.head.weight":
            "0.embed.weight"}``, as ``ap.tied_parameters`` finds them. None: those that ``split`` has seen.
        fixed_sums: add up a stage's gradients in the order of microbatches, so that a schedule changes no bit of them,
            save of tied parameters; of the library's schedules only looped-bfs adds in another order without it.
            Gradients that come early are kept until it is their turn.
        keep_outputs: also an attribute; ``outputs`` is what the last stage returned in the last step, on its rank.
        bucket_bytes: of sharded parameters gathered, or gradients reduced, in one message: see ``annopipe.bucket``.
        recompute: what backwards compute again instead of keeping it: as ``ap.trace`` takes it, for all stages, or a
            mapping from stages to that, for these and their copies; the same on all ranks. A region has to be in one of
            the stages.
        spreads_lists: a stage that returns a list calls the next one with its elements, too.
        nano_auxiliary: how what nano-batches give to ``ap.auxiliary_loss`` counts for their microbatch: "mean", each by
            its share of the sequences, or "sum". What is trained is then the loss of each nano-batch, which is not
            that of the microbatch where it is no sum over sequences; None refuses it.
        compile: "inductor": stretches of computation between communication are compiled, before the first message of
            the step that needs them; see docs/compiling.md, and ``compile_report``. None runs operation by operation.
        cuda_graphs: capture what is between communication as CUDA graphs: docs/compiling.md, ``capture_report``.
        timeout: how long a rank waits for another, in messages and in the collectives of graphs, before all ranks stop
            and say what they waited for; then the connections of the groups are closed, and the ranks have to be
            started again. While stages are traced, the limit of the process group itself holds.

    Raises PipelineError for stages, ranks or a schedule that do not fit; ScheduleError for a schedule not whole.

    >>> import annopipe as ap
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    >>> pipe = ap.Pipeline(list(model), ap.schedule("dualpipev", ranks=1, microbatches=2), loss_fn=nn.MSELoss())
    >>> losses = pipe.step(torch.ones(6, 4), target=torch.zeros(6, 2))
    >>> len(losses), model[0].weight.grad.shape
    (2, torch.Size([4, 4]))
    """

    def __init__(
        self,
        stages: Sequence[nn.Module | None],
        schedule: Schedule,
        group: dist.ProcessGroup | None = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        policy: str | Policy = "auto",
        *,
        costs: StageNodeCosts | None = None,
        plan_group: dist.ProcessGroup | None = None,
        batch_dims: BatchDims = MappingProxyType({}),
        tied: Mapping[str, str] | None = None,
        fixed_sums: bool = False,
        bucket_bytes: int | None = 25 * 2**20,
        keep_outputs: bool = False,
        recompute: StageRecompute = None,
        spreads_lists: bool = False,
        nano_auxiliary: Literal["mean", "sum"] | None = None,
        compile: Literal["inductor"] | None = None,  # noqa: A002 (as torch.nn.Module.compile)
        cuda_graphs: bool = False,
        timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        check_kinds(stages, schedule, timeout, {"batch_dims": batch_dims, "tied": tied or {}})
        stages = list(stages)
        rank, size, group = place_in(group)
        stages = one_per_stage(stages, schedule.placement, rank)
        modules = {index: module for index, module in enumerate(stages) if module is not None}
        check_made(stages, schedule, rank, size)
        check_transport(schedule.placement, group)
        check_loss(loss_fn, timeout)
        check_nano_auxiliary(nano_auxiliary)
        check_forms(compile, cuda_graphs, modules.values())
        schedule.check()
        lowered = Schedule(with_messages(schedule.programs), schedule.name, schedule.operations)
        others = [plan_group] if plan_group is not None else []
        choices = recompute_choices(recompute, lowered.placement.weights_of)
        tied = noted_ties(modules.values()) if tied is None else tied
        facts = facts_of(lowered, policy, tied, choices, bucket_bytes, batch_dims) | {
            "nano_auxiliary": str(nano_auxiliary),
            "compile": str(compile),
            "cuda_graphs": str(cuda_graphs),
        }
        peers = Peers(group, others, timeout, facts)
        made = lowered, rank, peers, plan_group, loss_fn, policy, costs, choices, fixed_sums, bucket_bytes
        ties = TiedParameters(with_copies(tied, modules, schedule.placement), modules, schedule.placement, rank)
        settings = Settings(
            *made,
            spreads_lists=spreads_lists,
            batch_dims=dict(batch_dims),
            nano_auxiliary=nano_auxiliary,
            compiles=compile is not None,
            recorder=new_recorder() if cuda_graphs else None,
        )
        self._runner = Runner(settings, modules, ties, Messages(group, timeout))
        self._runner.keep_outputs = keep_outputs
        self._batch_dims = dict(batch_dims)

    @classmethod
    def from_config(cls, path: str | PathLike[str], stages: Sequence[nn.Module | None], **arguments: Any) -> "Pipeline":
        """A pipeline with the schedule and the policy of a config that ``ap.tune`` or ``annopipe tune`` has saved.

        Args:
            path: of the config; its schedule is a file beside it.
            stages: one module per stage; ``RunConfig.load(path).layers`` says which layers of the model each has.
            arguments: the others of ``Pipeline``, such as ``loss_fn``.

        Raises PipelineError for a config that cannot be read, or that computes layers again when no ``recompute`` says
        how; and what ``Pipeline`` raises.
        """
        config = RunConfig.load(path)
        if any(config.recomputed) and "recompute" not in arguments:
            stage = next(stage for stage, count in enumerate(config.recomputed) if count)
            raise PipelineError(
                f"{path}: stage {stage} computes {config.recomputed[stage]} of its layers again: say how with "
                f"recompute={{{stage}: ...}}, as regions or a budget, or recompute=None for none"
            )
        return cls(stages, config.schedule, **{"policy": config.policy, **arguments})

    @property
    def schedule(self) -> Schedule:
        """The schedule, with messages."""
        return self._runner.schedule

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks of the pipeline; None when it is this one alone."""
        return self._runner.peers.group

    @property
    def modules(self) -> dict[int, nn.Module]:
        """This rank's modules, by stage; those of both copies of a model."""
        return dict(self._runner.modules)

    def gather(self, item: T, what: str) -> list[T]:
        """One item of every rank of the pipeline, on all of them; every rank calls it.

        Raises PipelineError when not all do within the timeout.
        """
        with self._runner.peers.calling(what):
            self._runner.peers.agree("")
            return self._runner.peers.gather(item, what)

    @property
    def runner(self) -> Runner:
        """What runs microbatches that are cut already, and calls the other ranks: for what is built on a pipeline."""
        return self._runner

    @property
    def keep_outputs(self) -> bool:
        """Whether ``outputs`` is kept."""
        return self._runner.keep_outputs

    @keep_outputs.setter
    def keep_outputs(self, keep: bool) -> None:
        self._runner.keep_outputs = keep

    @property
    def outputs(self) -> list[Any] | None:
        """What the last stage returned for every microbatch of the last step, on its rank, where it is kept."""
        return self._runner.outputs

    @property
    def auxiliary_losses(self) -> dict[int, list[torch.Tensor]]:
        """What this rank's stages gave to ``ap.auxiliary_loss`` in the last step, by stage, for each microbatch."""
        return dict(self._runner.auxiliary_losses)

    @property
    def holds_last(self) -> bool:
        """Whether this rank holds the last stage, or that of a copy, and so returns losses."""
        return self._runner.holds_last

    def register(self, name: str, function: Operation) -> None:
        """Say what an operation that the schedule inserts does: ``function(stage, microbatch)``; see ``map_saved``.

        >>> import dataclasses, annopipe as ap
        >>> spec = ap.schedule_spec("gpipe", ranks=1, microbatches=2)
        >>> spec = dataclasses.replace(spec, operations=(ap.Operation("OFFLOAD", after="F"),))
        >>> pipe = ap.Pipeline([nn.Linear(4, 2)], spec.build(), loss_fn=nn.MSELoss())
        >>> pipe.register("OFFLOAD", lambda stage, microbatch: print(f"offload {stage} {microbatch}"))
        >>> losses = pipe.step(torch.ones(6, 4), target=torch.zeros(6, 2))
        offload 0 0
        offload 0 1

        Raises PipelineError when the schedule has no such operation on this rank.
        """
        kinds = {action.kind for action in self.schedule.ranks[self._runner.settings.rank]} - BUILTIN_KINDS
        if name not in kinds:
            raise PipelineError(
                f"the schedule has no operation {name!r} on this rank; it has {sorted(kinds) or 'none'}"
            )
        self._runner.operations[name] = function

    def map_saved(self, stage: int, microbatch: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put ``change(tensor)`` in the place of each tensor that a microbatch has saved on a stage of this rank.

        For operations, such as one that moves what a backward will need elsewhere, and one that brings it back: what
        the graphs are given must be as they saved it.

        Raises PipelineError outside of a step, and for a microbatch that has saved nothing there.
        """
        if (found := self._runner.stages.get(stage)) is None:
            raise PipelineError(f"map_saved: no step runs, or stage {stage} is not on this rank")
        found.map_saved(microbatch, change)

    def named_parameters(self, *, counted: bool = False) -> Iterator[tuple[str, nn.Parameter]]:
        """Each parameter of this rank once, as "stage.name".

        Args:
            counted: leave out copies of tied parameters that a rank before counts, so that all ranks together have each
                parameter once.
        """
        seen: set[nn.Parameter] = set()
        for index, module in sorted(self._runner.modules.items()):
            for name, parameter in module.named_parameters():
                if parameter not in seen and not (counted and parameter in self._runner.tied.counted_elsewhere):
                    seen.add(parameter)
                    yield f"{index}.{name}", parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Each parameter of this rank once, for its optimizer."""
        return (parameter for _, parameter in self.named_parameters())

    def plans(self) -> dict[Parts, OverlapPlan]:
        """The plan of every combined graph of this rank in the last step, or ``prepare``; empty before the first.

        >>> import annopipe as ap
        >>> stages = [nn.Linear(4, 4), nn.Linear(4, 2)]
        >>> pipe = ap.Pipeline(stages, ap.schedule("dualpipev", ranks=1, microbatches=2), loss_fn=nn.MSELoss())
        >>> pipe.prepare(torch.ones(6, 4), target=torch.zeros(6, 2))
        >>> list(pipe.plans())
        [(('F', 1), ('B', 0))]
        """
        return self._runner.plans

    @property
    def compile_report(self) -> CompileReport | None:
        """What is compiled of this rank's graphs of the last step, or ``prepare``; None when nothing is to be."""
        return self._runner.compile_report

    @property
    def capture_report(self) -> CaptureReport | None:
        """The same of what is captured as CUDA graphs."""
        return self._runner.capture_report

    def prepare(self, *inputs: Any, target: Any = None, **kwargs: Any) -> None:
        """Trace, agree with the other ranks and plan, as the first step would; call it with a step's arguments.

        Nothing is computed. What was prepared for the last 64 combinations of shapes, constants and modes is kept.

        >>> import annopipe as ap
        >>> pipe = ap.Pipeline([nn.Linear(4, 2)], ap.schedule("gpipe", ranks=1, microbatches=2), loss_fn=nn.MSELoss())
        >>> pipe.prepare(torch.ones(6, 4), target=torch.zeros(6, 2))
        """
        self._runner.prepare(lambda: self._calls(inputs, kwargs, target))

    def step(
        self,
        *inputs: Any,
        target: Any = None,
        loss_scale: Scale = 1.0,
        auxiliary_scale: Scale | None = None,
        **kwargs: Any,
    ) -> list[torch.Tensor] | None:
        """Forward and backward of one batch; gradients are added to ``param.grad``.

        A mean over all tokens of the batch, however many each microbatch has: let ``loss_fn`` add up, and pass
        ``loss_scale=1 / tokens``.

        Args:
            inputs: of the first stage, on its rank; tensors are cut along the first dimension.
            target: of the loss, on the rank of the last stage.
            loss_scale: what every loss is multiplied with before it is differentiated.
            auxiliary_scale: the same for what stages give to ``ap.auxiliary_loss``, on the ranks of these stages; None
                is ``loss_scale``.
            kwargs: go to every stage of this rank whose forward names them.

        Returns:
            What ``loss_fn`` returned for every microbatch on the rank of the last stage, None elsewhere. With two
            copies of the model the ranks of both last stages return it for the microbatches of their copy.

        Raises:
            PipelineError: the call does not fit, or a rank, stage or message failed; the message names the action. Then
                the gradients are those of a part of the step: set them to None before the next one.
        """
        return self._runner.step(lambda: self._calls(inputs, kwargs, target), loss_scale, auxiliary_scale)

    def step_microbatches(
        self,
        args: Sequence[tuple[Any, ...]] | None = None,
        kwargs: Sequence[Mapping[str, Any]] | None = None,
        targets: Sequence[Any] | None = None,
        loss_scale: Scale = 1.0,
        auxiliary_scale: Scale | None = None,
    ) -> list[torch.Tensor] | None:
        """As ``step``, with one entry per microbatch, already cut; all have the same shapes.

        Args:
            args: for each microbatch the tuple of the first stage's positional arguments; ``(x,)`` when there is one.
            kwargs, targets: for each microbatch its keyword arguments, and the target of its loss.
            loss_scale, auxiliary_scale: as for ``step``.

        >>> import annopipe as ap
        >>> pipe = ap.Pipeline([nn.Linear(4, 2)], ap.schedule("gpipe", ranks=1, microbatches=2), loss_fn=nn.MSELoss())
        >>> parts, targets = [torch.ones(3, 4), torch.zeros(3, 4)], [torch.ones(3, 2), torch.zeros(3, 2)]
        >>> len(pipe.step_microbatches([(part,) for part in parts], targets=targets))
        2
        """

        def cut() -> list[Call]:
            check_inputs(self.schedule.placement, len(args[0]) if args else 0)
            has_first, own = self._runner.first is not None, targets if self.holds_last else None
            return cut_calls(args, kwargs, own, self.schedule.microbatches, has_first=has_first)

        return self._runner.step(cut, loss_scale, auxiliary_scale)

    def eval(self, *inputs: Any, **kwargs: Any) -> list[Any] | None:
        """Forward of one batch with the modules in evaluation mode; at any time, also before the first step.

        Returns:
            What the last stage returned for every microbatch on its rank, None elsewhere.

        >>> import annopipe as ap
        >>> pipe = ap.Pipeline([nn.Linear(4, 2)], ap.schedule("gpipe", ranks=1, microbatches=2))
        >>> [output.shape for output in pipe.eval(torch.ones(6, 4))]
        [torch.Size([3, 2]), torch.Size([3, 2])]
        """
        return self._runner.evaluate(lambda: self._calls(inputs, kwargs, None))

    def _calls(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> list[Call]:
        target = target if self.holds_last else None
        check_inputs(self.schedule.placement, len(inputs))
        return split_calls(self._runner.first, inputs, kwargs, target, self.schedule.microbatches, self._batch_dims)
