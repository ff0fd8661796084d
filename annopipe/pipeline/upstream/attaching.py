"""``attach``: run a schedule object of torch.distributed.pipelining with annopipe's graphs and policies."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from annopipe.errors import PipelineError
from annopipe.ordering.combining import StageNodeCosts
from annopipe.ordering.registry import Policy
from annopipe.pipeline.calls.microbatch_calls import Call, cut_calls
from annopipe.pipeline.pipeline import Pipeline
from annopipe.pipeline.recomputing import StageRecompute
from annopipe.pipeline.running import Runner
from annopipe.pipeline.stages.gradients_apart import gradients_apart
from annopipe.pipeline.upstream.schedule_objects import TorchSchedule, UpstreamSchedule

__all__ = ["attach"]

S = TypeVar("S", bound=TorchSchedule)
_HELD_STAGES = 3  # a rank with more of them gathers parameters when they are needed, as PyTorch's runtime does


def attach(
    schedule: S,
    policy: str | Policy = "auto",
    *,
    costs: StageNodeCosts | None = None,
    plan_group: dist.ProcessGroup | None = None,
    fixed_sums: bool = False,
    recompute: StageRecompute = None,
    compile: Literal["inductor"] | None = None,  # noqa: A002 (as torch.nn.Module.compile)
    cuda_graphs: bool = False,
    timeout: timedelta = timedelta(minutes=5),
) -> S:
    """Let a schedule object of torch.distributed.pipelining run as an ``ap.Pipeline``, and return it.

    Its ``step`` and ``eval`` are called as before, with the same losses, outputs and gradients; its order, stages,
    group, loss, ``scale_grads`` and chunk specs are kept. ``schedule.annopipe`` is the pipeline, for ``plans()``,
    ``auxiliary_losses`` and ``ap.clip_grad_norm_``. All ranks attach before the first step.

    Three things are other than in PyTorch. Gradients that are there before a step are left as they are: PyTorch divides
    them once more with those of the step. ``eval`` leaves gradients alone, too, and needs a target only for ``losses``.
    Losses and outputs hold no autograd graph.

    Args:
        schedule: with one stage a rank or several, of any class, also one that was loaded from CSV.
        policy, costs, plan_group, fixed_sums, recompute, compile, cuda_graphs, timeout: see ``ap.Pipeline``.

    Stages that ``fully_shard`` has sharded are taken over as by ``ap.from_fully_shard``, for good.

    Raises PipelineError for what cannot be kept: functions of register_custom_function, a dw_builder, stages in
    DistributedDataParallel, values that skip a stage.

    >>> import annopipe as ap
    >>> from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> layer = nn.Linear(4, 2)
    >>> stage = PipelineStage(layer, 0, 1, torch.device("cpu"))
    >>> schedule = ap.attach(ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.MSELoss()))
    >>> losses = []
    >>> output = schedule.step(torch.ones(6, 4), target=torch.zeros(6, 2), losses=losses)
    >>> output.shape, len(losses), layer.weight.grad.shape
    (torch.Size([6, 2]), 2, torch.Size([2, 4]))
    >>> dist.destroy_process_group()
    """
    if isinstance(getattr(schedule, "annopipe", None), Pipeline):
        raise PipelineError("this schedule is attached already; make a new one for another policy")
    upstream = UpstreamSchedule(schedule)
    order = upstream.order()
    if order.placement.stages > _HELD_STAGES * len(order.ranks):
        order = order.lowered(parameters=True, max_active=_HELD_STAGES)
    upstream.take_over_shards()
    pipe = _AttachedPipeline(
        upstream.modules,
        order,
        upstream.group,
        None if upstream.loss_fn is None else _Loss(upstream.loss_fn),
        policy,
        costs=costs,
        plan_group=plan_group,
        fixed_sums=fixed_sums,
        recompute=recompute,
        compile=compile,
        cuda_graphs=cuda_graphs,
        spreads_lists=True,  # as upstream does
        timeout=timeout,
    )
    attachment = _Attachment(upstream, pipe.runner)
    upstream.replace(step=attachment.step, eval=attachment.eval, annopipe=pipe)
    return schedule


class _AttachedPipeline(Pipeline):
    """The pipeline of an attached schedule, whose methods are called in the place of its own."""

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise _instead("step", "step")

    def step_microbatches(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise _instead("step_microbatches", "step")

    def prepare(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise _instead("prepare", "step, which prepares what is new")

    def eval(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise _instead("eval", "eval")


def _instead(asked: str, method: str) -> PipelineError:
    return PipelineError(
        f"schedule.annopipe.{asked} takes no batch: the attached schedule cuts it and divides gradients; call "
        f"schedule.{method}"
    )


class _Loss:
    """An upstream loss as a function of output and target; what else it takes comes with the target."""

    def __init__(self, loss_fn: Callable[..., torch.Tensor]) -> None:
        self.__wrapped__ = loss_fn

    def __call__(self, output: Any, packed: tuple[Any, Mapping[str, Any]]) -> torch.Tensor:
        target, kwargs = packed
        return self.__wrapped__(output, target, **kwargs)


class _Attachment:
    """``step`` and ``eval`` of an attached schedule: they are called, and return, as upstream's."""

    def __init__(self, upstream: UpstreamSchedule, runner: Runner) -> None:
        self._upstream, self._runner = upstream, runner

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Forward and backward of a batch; without a loss, its forward."""
        if self._upstream.loss_fn is None:
            return self.eval(*args, target=target, losses=losses, return_outputs=return_outputs, **kwargs)

        def cut() -> list[Call]:
            self._upstream.refuse_functions()
            return self._calls(args, kwargs, target, loss_kwargs)

        self._runner.keep_outputs = return_outputs
        with _divided(self._divisors()):
            found = self._runner.step(cut)
        if losses is not None and found is not None:
            losses[:] = found
        return self._merged(self._runner.outputs if return_outputs else None)

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Forward of a batch, with the modules in the mode that they are in."""
        loss_fn, targets = self._upstream.loss_fn, list[Any]()

        def cut() -> list[Call]:
            if losses is not None and self._runner.holds_last and (target is None or loss_fn is None):
                what = "loss_fn" if target is not None else "target"
                raise PipelineError(f"losses were asked for, and there is no {what}: give one, or leave losses out")
            calls = self._calls(args, kwargs, target, loss_kwargs)
            targets.extend(call.target for call in calls)
            return [Call(call.args, call.kwargs, None) for call in calls]

        outputs = self._runner.evaluate(cut, keep_modes=True)
        if losses is not None and outputs is not None and loss_fn is not None:
            with torch.no_grad():
                losses[:] = [_Loss(loss_fn)(output, part) for output, part in zip(outputs, targets, strict=True)]
        return self._merged(outputs if return_outputs else None)

    def _calls(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any, loss_kwargs: Mapping[str, Any] | None
    ) -> list[Call]:
        """The microbatches as upstream cuts them; what the loss takes besides comes with its target."""
        runner = self._runner
        args_of, kwargs_of, targets = self._upstream.cut(args, kwargs, target if runner.holds_last else None)
        packed = [None if part is None else (part, dict(loss_kwargs or {})) for part in targets]
        return cut_calls(args_of, kwargs_of, packed, self._upstream.microbatches, has_first=runner.first is not None)

    def _divisors(self) -> dict[nn.Parameter, int]:
        """What gradients are divided by, of each parameter once, where it is not 1."""
        own = ((self._upstream.divisor(index), module) for index, module in self._runner.modules.items())
        return {parameter: divisor for divisor, module in own for parameter in module.parameters() if divisor > 1}

    def _merged(self, outputs: list[Any] | None) -> Any:
        return None if outputs is None else self._upstream.merged(outputs)


@contextlib.contextmanager
def _divided(divisors: Mapping[nn.Parameter, int]) -> Iterator[None]:
    """Divide the gradients that come inside, after they have been added up, as upstream does, and no earlier ones."""
    with gradients_apart(divisors):
        yield
        for parameter, divisor in divisors.items():
            if parameter.grad is not None:
                parameter.grad.div_(divisor)
