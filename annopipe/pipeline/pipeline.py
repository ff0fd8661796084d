"""``Pipeline``: train the stages of a model under a pipeline schedule, with explicit graphs, on torch.distributed."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from annopipe.errors import PipelineError
from annopipe.ordering.combining import StageNodeCosts
from annopipe.ordering.plan import OverlapPlan
from annopipe.ordering.registry import Policy
from annopipe.pipeline.agreeing import agreed_text, digest
from annopipe.pipeline.combined import Combined, Parts
from annopipe.pipeline.interpreter import Interpreter, Operation, StepInputs
from annopipe.pipeline.messages import Messages
from annopipe.pipeline.microbatches import call_values, later_values, signature_text, split_batch
from annopipe.pipeline.preparing import Call, Settings, accepted, prepare
from annopipe.pipeline.stage import LocalStage
from annopipe.scheduling.actions import BUILTIN_KINDS
from annopipe.scheduling.schedule import Schedule

__all__ = ["Pipeline"]

_Prepared = tuple[dict[int, LocalStage], Interpreter, dict[Parts, Combined]]


class Pipeline:
    """The stages of a model under a schedule; every rank of the pipeline makes one and calls the same methods.

    A stage that returns a tuple calls the next one with its elements; any other value is the next one's argument.
    Stages run as traced graphs: gradients are those of the unsplit model, and modules need not inherit from anything.

    Args:
        stages: one module per stage of the schedule, None where another rank holds it.
        schedule: with compute actions only, or with messages.
        group: the ranks of the pipeline, None for all; rank r of the group holds the stages of rank r of the placement.
        loss_fn: ``loss_fn(output, target)`` per microbatch; gradients are those of the sum of the losses.
        policy: how combined graphs are ordered: see ``annopipe.overlap``.
        costs: what policies assume about nodes, as for ``ap.costs.actions``; None is the roofline of this device.
        plan_group: the ranks that run the same collectives as this one, such as the expert-parallel group, and so must
            order combined graphs alike.
        timeout: how long a rank waits for a message before it gives up and says what it waited for.

    Raises PipelineError for stages, ranks or a schedule that do not fit together; ScheduleError for a schedule that is
    not whole.

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
        timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        rank, size, group = _place(group)
        self._modules = {index: module for index, module in enumerate(stages) if module is not None}
        self._given = schedule
        _check(stages, schedule, rank, size)
        schedule.check()
        self._settings = Settings(schedule.lowered(), rank, group, plan_group, loss_fn, policy, costs)
        self._messages = Messages(group, timeout)
        self._schedule_digest = digest(repr(self.schedule.programs.texts()))
        self._operations: dict[str, Operation] = {}
        self._prepared: dict[str, _Prepared] = {}

    @property
    def schedule(self) -> Schedule:
        """The schedule, with messages."""
        return self._settings.schedule

    @property
    def holds_last(self) -> bool:
        """Whether this rank holds the last stage, and so returns losses."""
        return self._settings.schedule.placement.stages - 1 in self._modules

    def register(self, name: str, function: Operation) -> None:
        """Say what an operation that the schedule inserts does: ``function(stage, microbatch)``.

        Raises PipelineError when the schedule has no such operation on this rank.
        """
        kinds = {action.kind for action in self.schedule.ranks[self._settings.rank]} - BUILTIN_KINDS
        if name not in kinds:
            raise PipelineError(
                f"the schedule has no operation {name!r} on this rank; it has {sorted(kinds) or 'none'}"
            )
        self._operations[name] = function
        self._prepared.clear()

    def plans(self) -> dict[Parts, OverlapPlan]:
        """The plan of every combined graph of this rank; empty before the first step."""
        return {parts: found.plan for _, _, combined in self._prepared.values() for parts, found in combined.items()}

    def prepare(self, *inputs: Any, target: Any = None, **kwargs: Any) -> None:
        """Trace, agree with the other ranks and plan, as the first step would; call it with a step's arguments."""
        self._find(self._calls(inputs, kwargs, target))

    def step(
        self, *inputs: Any, target: Any = None, loss_scale: float = 1.0, **kwargs: Any
    ) -> list[torch.Tensor] | None:
        """Forward and backward of one batch; gradients are added to ``param.grad``.

        Args:
            inputs: of the first stage, on its rank; tensors are cut along the first dimension.
            target: of the loss, on the rank of the last stage.
            loss_scale: what every loss is multiplied with before it is differentiated.
            kwargs: go to every stage of this rank whose forward names them.

        Returns:
            The loss of every microbatch on the rank of the last stage, None elsewhere.

        Raises:
            PipelineError: the call does not fit, or a rank, stage or message failed; the message names the action.
        """
        return self._run(self._calls(inputs, kwargs, target), loss_scale)

    def step_microbatches(
        self,
        args: Sequence[tuple[Any, ...]] | None = None,
        kwargs: Sequence[Mapping[str, Any]] | None = None,
        targets: Sequence[Any] | None = None,
        loss_scale: float = 1.0,
    ) -> list[torch.Tensor] | None:
        """As ``step``, with one entry per microbatch, already cut."""
        count = self.schedule.microbatches
        for what, given in (("args", args), ("kwargs", kwargs), ("targets", targets)):
            if given is not None and len(given) != count:
                raise PipelineError(f"{what} has {len(given)} entries and the schedule {count} microbatches")
        calls = [
            Call(args[m] if args else (), kwargs[m] if kwargs else {}, targets[m] if targets else None)
            for m in range(count)
        ]
        return self._run(calls, loss_scale)

    def _calls(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any) -> list[Call]:
        count = self.schedule.microbatches
        args, named = split_batch(inputs, count, "inputs"), split_batch(dict(kwargs), count, "kwargs")
        targets = split_batch(target, count, "target")
        return [Call(*parts) for parts in zip(args, named, targets, strict=True)]

    def _run(self, calls: list[Call], loss_scale: float) -> list[torch.Tensor] | None:
        stages, interpreter, _ = self._find(calls)
        last = self.schedule.placement.stages - 1
        by_stage = {}
        for index, stage in stages.items():
            stage.begin_step()
            named = [accepted(stage.module, call.kwargs) for call in calls]
            by_stage[index] = [
                call_values(stage.graphs, call.args, kwargs, call.target)
                if index == 0
                else later_values(stage.graphs, kwargs, call.target)
                for call, kwargs in zip(calls, named, strict=True)
            ]
        interpreter.run(StepInputs(by_stage, loss_scale))
        if last not in stages:
            return None
        return [stages[last].losses[microbatch] for microbatch in range(len(calls))]

    def _find(self, calls: list[Call]) -> _Prepared:
        """What was prepared for such calls; prepared now when there is nothing."""
        signature = agreed_text(self._signature(calls[0]), self._schedule_digest, self._settings.group)
        if signature not in self._prepared:
            missing = sorted(
                {action.kind for action in self.schedule.ranks[self._settings.rank]}
                - BUILTIN_KINDS
                - self._operations.keys()
            )
            if missing:
                raise PipelineError(
                    f"the schedule inserts {missing[0]}: say what it does with pipe.register({missing[0]!r}, fn)"
                )
            self._prepared[signature] = prepare(
                self._settings, self._modules, calls[0], self._messages, self._operations
            )
        return self._prepared[signature]

    def _signature(self, call: Call) -> str:
        held = self._modules
        last = self.schedule.placement.stages - 1
        parts = [signature_text(call.args) if 0 in held else "", signature_text(dict(call.kwargs))]
        parts += [signature_text(call.target) if last in held else ""]
        parts += [f"{index}{module.training}" for index, module in held.items()]
        return " ".join(parts)


def _place(group: dist.ProcessGroup | None) -> tuple[int, int, dist.ProcessGroup | None]:
    """This rank and the size of the pipeline; the group is None when it is this rank alone."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1, None
    found = group if group is not None else dist.group.WORLD
    size = dist.get_world_size(found)
    return dist.get_rank(found), size, found if size > 1 else None


def _check(stages: Sequence[nn.Module | None], schedule: Schedule, rank: int, size: int) -> None:
    placement = schedule.placement
    if not placement.is_chain:
        raise PipelineError(f"{placement!r} is not a chain of stages from 0 on: the pipeline runs chains")
    if size != placement.ranks:
        raise PipelineError(f"the schedule is for {placement.ranks} ranks and the group has {size}")
    if len(stages) != placement.stages:
        raise PipelineError(
            f"there are {len(stages)} stages and the schedule has {placement.stages}: give one module per stage, None "
            "where another rank holds it"
        )
    for index, module in enumerate(stages):
        held = placement.rank_of[index] == rank
        if held != isinstance(module, nn.Module):
            raise PipelineError(
                f"stage {index} belongs on rank {placement.rank_of[index]}, and this is rank {rank}: give "
                f"{'a module' if held else 'None'}, got {type(module).__name__}"
            )
