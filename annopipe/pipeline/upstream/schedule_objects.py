"""What is read from a schedule object of torch.distributed.pipelining: the only file that knows how it is made inside.

What it holds that annopipe would not do is refused by name, before anything runs.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks
from torch.distributed.pipelining.stage import _PipelineStage, _PipelineStageBase
from torch.nn.parallel import DistributedDataParallel

from annopipe.errors import PipelineError
from annopipe.scheduling import csv_format
from annopipe.scheduling.library import schedule as named_schedule
from annopipe.scheduling.placement import custom
from annopipe.scheduling.schedule_class import Schedule

__all__ = ["TorchSchedule", "UpstreamSchedule"]

TorchSchedule: TypeAlias = schedules.PipelineScheduleSingle | schedules.PipelineScheduleMulti

# Classes with one stage a rank: their order is code, which the library has by name.
_BY_NAME: dict[Any, str] = {
    schedules.ScheduleGPipe: "gpipe",
    schedules.Schedule1F1B: "1f1b",
    schedules._ScheduleForwardOnly: "forward-only",
}
_BY_ORDER = (schedules.PipelineScheduleMulti, schedules._PipelineScheduleRuntime)
# What runs on a stage; a class that does it in its own way says nothing to a graph.
_OF_STAGE = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


class UpstreamSchedule:
    """A schedule object, as far as it says what is to be run.

    Raises PipelineError for an object that is none, and for what cannot be kept.
    """

    def __init__(self, schedule: TorchSchedule) -> None:
        if not isinstance(schedule, TorchSchedule):
            raise PipelineError(
                f"attach takes a schedule object of torch.distributed.pipelining, got {type(schedule).__name__}; "
                "annopipe's own schedules are run by ap.Pipeline"
            )
        self._schedule: Any = schedule
        self._stages: list[Any] = (
            [schedule._stage] if isinstance(schedule, schedules.PipelineScheduleSingle) else schedule._stages
        )
        _refuse_own_order(schedule)
        self.refuse_functions()
        if not getattr(schedule, "_backward_requires_autograd", True):  # not every release of torch has it
            raise PipelineError(
                "the schedule was made with backward_requires_autograd=False, for backwards that are no autograd: "
                "annopipe traces backwards by autograd; leave it out"
            )
        for stage in self._stages:
            _refuse_stage(stage)

    @property
    def modules(self) -> list[nn.Module | None]:
        """One per stage of the pipeline, None where another rank holds it."""
        own = {stage.stage_index: stage.submod for stage in self._stages}
        return [own.get(index) for index in range(self._schedule._num_stages)]

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks of the pipeline; None for all."""
        found: dist.ProcessGroup | None = self._stages[0].group
        return found

    @property
    def microbatches(self) -> int:
        """How many microbatches a step has."""
        return int(self._schedule._n_microbatches)

    @property
    def loss_fn(self) -> Callable[..., torch.Tensor] | None:
        """What is differentiated, as it was before torch.compile; None for a schedule that only runs forwards."""
        given = self._schedule._loss_fn
        found: Callable[..., torch.Tensor] | None = getattr(given, "_torchdynamo_orig_callable", given)
        return found

    def order(self) -> Schedule:
        """The computation of every rank, in its order.

        Raises PipelineError when there is none yet, ScheduleError when it is not that of a pipeline.
        """
        name = _name_of(self._schedule)
        if name is not None:
            return named_schedule(name, self._schedule._num_stages, self.microbatches)
        rows = self._actions()
        if not rows or not any(rows.values()):
            raise PipelineError(
                f"{type(self._schedule).__name__} has no order yet: load one with _load_csv, and attach it afterwards"
            )
        rank_of = self._schedule.stage_index_to_group_rank
        placement = custom([rank_of[stage] for stage in range(self._schedule._num_stages)])
        # Messages and parameter actions are put in anew: they follow from the computation.
        cells = [[str(action) for action in rows[rank] if action and action.is_compute_op] for rank in sorted(rows)]
        text = "".join(",".join(row) + "\n" for row in cells)
        name = type(self._schedule).__name__
        programs = csv_format.read(
            text, placement=placement, microbatches=self.microbatches, source=f"the order of {name}"
        )
        return Schedule(programs, name)

    def divisor(self, stage: int) -> int:
        """What a step divides the gradients of one of this rank's stages by.

        An order with messages may leave out REDUCE_GRAD, which is where PyTorch does it.
        """
        if not self._schedule.scale_grads:
            return 1
        if isinstance(self._schedule, schedules._PipelineScheduleRuntime):
            own = self._actions()[self._schedule.rank]
            reduces = schedules._ComputationType.REDUCE_GRAD
            if not any(a.stage_index == stage and a.computation_type == reduces for a in own if a is not None):
                return 1
        return self.microbatches

    def cut(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any
    ) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]], list[Any]]:
        """Arguments, keyword arguments and target of each microbatch, cut as the schedule would.

        Raises PipelineError where they cannot be cut so.
        """
        try:
            cut_args, cut_kwargs = self._schedule._split_inputs(args, dict(kwargs))
            if target is None:
                return cut_args, cut_kwargs, [None] * self.microbatches
            targets, _ = split_args_kwargs_into_chunks((target,), None, self.microbatches)
        except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise PipelineError(
                f"the batch cannot be cut into {self.microbatches} microbatches as the schedule's args_chunk_spec and "
                f"kwargs_chunk_spec say: {type(error).__name__}: {error}"
            ) from error
        return cut_args, cut_kwargs, [value for (value,) in targets]

    def merged(self, outputs: Sequence[Any]) -> Any:
        """The outputs of all microbatches as one, as the schedule's output_merge_spec says."""
        return self._schedule._merge_outputs(list(outputs))

    def refuse_functions(self) -> None:
        """Raises PipelineError for functions that stand in for actions; they may be registered at any time."""
        functions = getattr(self._schedule, "_comp_type_to_function_map", {})
        if functions:
            kinds = ", ".join(sorted(kind.value for kind in functions))
            raise PipelineError(
                f"register_custom_function has been called for {kinds}, and annopipe runs actions as graphs: take the "
                "call out; combined actions (OVERLAP_F_B) are ordered by attach's policy"
            )

    def replace(self, **attributes: Any) -> None:
        """Give the object these attributes, also in the place of its methods."""
        for name, value in attributes.items():
            setattr(self._schedule, name, value)

    def _actions(self) -> dict[int, list[Any]]:
        """What PyTorch would run, by rank."""
        if isinstance(self._schedule, schedules._PipelineScheduleRuntime):
            return getattr(self._schedule, "pipeline_order_with_comms", {})  # not there before an order is
        found: dict[int, list[Any]] = self._schedule.pipeline_order
        return found


def _name_of(schedule: Any) -> str | None:
    """That of a schedule with one stage a rank."""
    runs = type(schedule)._step_microbatches
    return next((name for kind, name in _BY_NAME.items() if runs is kind._step_microbatches), None)


def _refuse_own_order(schedule: Any) -> None:
    known = [kind._step_microbatches for kind in (*_BY_NAME, *_BY_ORDER)]
    if type(schedule)._step_microbatches not in known:
        raise PipelineError(
            f"{type(schedule).__name__} has a _step_microbatches of its own, and annopipe cannot read the order from "
            "code: write the order as CSV and load it into a _PipelineScheduleRuntime, or make an ap.Schedule of it "
            "for ap.Pipeline"
        )


def _refuse_stage(stage: Any) -> None:
    where = f"stage {stage.stage_index}"
    own = [name for name in _OF_STAGE if getattr(type(stage), name) is not getattr(_PipelineStageBase, name)]
    if own:
        raise PipelineError(
            f"{where} is a {type(stage).__name__} with a {own[0]} of its own, which graphs do not run: put what it "
            "does into the stage's module"
        )
    if stage.dw_builder is not None:
        raise PipelineError(
            f"{where} has a dw_builder, which splits its backward by hand: leave it out; annopipe splits the graph "
            "where the schedule has I and W"
        )
    _refuse_data_parallel(where, stage.submod)
    if isinstance(stage, _PipelineStage):
        _refuse_no_chain(stage.pipe_info.graph)


def _refuse_data_parallel(where: str, module: nn.Module) -> None:
    for name, part in module.named_modules():
        of = f"{where}.{name}" if name else where
        if isinstance(part, DistributedDataParallel):
            raise PipelineError(
                f"{of} is a DistributedDataParallel, whose hooks on gradients graphs do not run: make the stage of the "
                "module that it wraps, and average the gradients over its ranks after step"
            )
        if isinstance(part, (FSDPModule, FullyShardedDataParallel)):
            raise PipelineError(
                f"{of} is sharded by {'fully_shard' if isinstance(part, FSDPModule) else 'FullyShardedDataParallel'}, "
                "which gathers its parameters in hooks that graphs do not run: make the stage of the module without it"
            )


def _refuse_no_chain(graph: fx.Graph) -> None:
    """Of a model that ``pipeline()`` cut: each stage has to take what the one before returns, all of it, in its order.

    Raises PipelineError for anything else, such as a value that skips a stage.
    """
    stages = [node for node in graph.nodes if node.op == "call_module"]
    for before, node in itertools.pairwise(stages):
        parts = sorted(_parts(before), key=lambda part: int(str(part.args[1])))
        handed = parts or [before]
        if list(node.args) != handed or node.kwargs or any(set(part.users) != {node} for part in handed):
            raise PipelineError(
                f"{node.name} takes {', '.join(map(str, node.args))}, and {before.name} hands on "
                f"{', '.join(part.name for part in handed)}: values that skip a stage, or come in another order, are "
                "not taken over from pipeline(); cut the model with ap.split, and run it with ap.Pipeline"
            )


def _parts(node: fx.Node) -> Iterator[fx.Node]:
    return (user for user in node.users if user.target is operator.getitem)
