"""Steps and evaluations of the stages that one rank holds, for microbatches that are cut already."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from annopipe.capturing.report import CaptureReport
from annopipe.compiling.report import CompileReport
from annopipe.graphs.stage_graphs import AUXILIARY_LOSS, LOSS
from annopipe.ordering.plan import OverlapPlan
from annopipe.pipeline.calls.microbatch_calls import Call
from annopipe.pipeline.calls.names import accepted
from annopipe.pipeline.calls.step_inputs import StepInputs, values_of
from annopipe.pipeline.calls.step_results import in_order, of_last
from annopipe.pipeline.checks import check_grad_mode, check_operations, check_scales, check_trains
from annopipe.pipeline.evaluation import evaluation_mode
from annopipe.pipeline.finding import Finder, ModuleStates
from annopipe.pipeline.interpreter import Interpreter, Operation
from annopipe.pipeline.preparing import Settings, prepare
from annopipe.pipeline.ranks.messages import Messages
from annopipe.pipeline.ranks.peers import Peers
from annopipe.pipeline.stages.batch_loss import Scale
from annopipe.pipeline.stages.combined import Combined, Parts
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.pipeline.tied import TiedParameters
from annopipe.scheduling.schedule_class import Schedule

__all__ = ["Runner"]

# Makes the calls of a step or evaluation; what it raises is told to the other ranks.
Cut = Callable[[], Sequence[Call]]


class Runner:
    """The stages of one rank under a schedule; ``Pipeline`` and ``attach`` give it calls.

    Attributes:
        settings, modules, tied: as given.
        operations: what the operations that the schedule inserts do, by name.
        first, holds_last: see ``Finder``.
        stages: while they run, by number.
        outputs, auxiliary_losses: of the last step, see ``Pipeline``.
        keep_outputs: whether ``outputs`` is kept.

    Args:
        settings: what stays the same for all calls.
        modules: of this rank, by stage.
        tied: parameters that several ranks hold.
        messages: to and from the other ranks.
    """

    def __init__(
        self, settings: Settings, modules: Mapping[int, nn.Module], tied: TiedParameters, messages: Messages
    ) -> None:
        self.settings, self.modules, self.tied = settings, modules, tied
        self._messages = messages
        self.operations: dict[str, Operation] = {}
        self._finder = Finder(settings, modules, tied, partial(prepare, messages=messages, operations=self.operations))
        self.first, self.holds_last = self._finder.first, self._finder.holds_last
        self.stages: Mapping[int, LocalStage] = {}
        self._combined: Mapping[Parts, Combined] = {}
        self.auxiliary_losses: dict[int, list[torch.Tensor]] = {}
        self.outputs: list[Any] | None = None
        self.keep_outputs = False
        self._interpreter: Interpreter | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule, with messages."""
        return self.settings.schedule

    @property
    def peers(self) -> Peers:
        """The ranks of the pipeline, as this one calls them together."""
        return self.settings.peers

    @property
    def plans(self) -> dict[Parts, OverlapPlan]:
        """The plans of the last step, or of ``prepare``."""
        return {parts: found.plan for parts, found in self._combined.items()}

    @property
    def compile_report(self) -> CompileReport | None:
        """What is compiled of the graphs of the last step, or of ``prepare``."""
        return None if self._interpreter is None else self._interpreter.forms.compiled

    @property
    def capture_report(self) -> CaptureReport | None:
        """What is captured of the graphs of the last step, or of ``prepare``, as it now is."""
        graphs = None if self._interpreter is None else self._interpreter.forms.captured
        return None if graphs is None else CaptureReport.joined(graph.report for graph in graphs)

    def prepare(self, cut: Cut) -> None:
        """Trace, agree and plan for such calls."""
        with self.peers.calling("prepare"):
            self._find(cut(), self._finder.states())

    def step(
        self, cut: Cut, loss_scale: Scale = 1.0, auxiliary_scale: Scale | None = None
    ) -> list[torch.Tensor] | None:
        """Forwards and backwards of the calls; the losses of this rank, None where there are none."""
        with self.peers.calling("step"):
            check_grad_mode()
            check_trains(self.schedule)
            scales = {LOSS: loss_scale, AUXILIARY_LOSS: loss_scale if auxiliary_scale is None else auxiliary_scale}
            check_scales(scales)
            return self._step(cut(), scales)

    def evaluate(self, cut: Cut, *, keep_modes: bool = False) -> list[Any] | None:
        """Forwards of the calls; what the last stage returned, None where it is not.

        Args:
            cut: makes the calls.
            keep_modes: leave the modules in the mode that they are in, in the place of evaluation mode.
        """
        modes = contextlib.nullcontext() if keep_modes else evaluation_mode(self.modules.values())
        with self.peers.calling("eval"), modes:
            calls = cut()
            states = self._finder.states()
            stages, interpreter, _ = self._finder.find(calls, states, evaluates=True)
            with self._running(stages):
                interpreter.run(self._begin(stages, states, calls, {}))
                return of_last(stages, self.schedule.placement, lambda last: last.outputs)

    def _step(self, calls: Sequence[Call], scales: Mapping[str, Scale]) -> list[torch.Tensor] | None:
        states, placement = self._finder.states(), self.schedule.placement
        stages, interpreter = self._find(calls, states)
        self.outputs = None
        for index in stages:
            stages[index].keeps_outputs = self.keep_outputs and index in placement.output_stages
        with self._running(stages):
            inputs = self._begin(stages, states, calls, scales)
            with self.tied.summed(self._messages):
                interpreter.run(inputs)
            inputs.backward(stages)
            named = {index: stage.losses.get(AUXILIARY_LOSS) for index, stage in stages.items()}
            self.auxiliary_losses = {index: in_order(found) for index, found in named.items() if found}
            self.outputs = of_last(stages, placement, lambda last: last.outputs) if self.keep_outputs else None
            return of_last(stages, placement, LocalStage.own_losses) if self.settings.loss_fn is not None else None

    def _find(self, calls: Sequence[Call], states: ModuleStates) -> tuple[dict[int, LocalStage], Interpreter]:
        """What was prepared for steps of such calls, whose plans are shown from now on."""
        check_operations(self.schedule, self.settings.rank, self.operations.keys())
        stages, interpreter, combined = self._finder.find(calls, states)
        self._combined, self._interpreter = combined, interpreter
        return stages, interpreter

    def _begin(
        self, stages: Mapping[int, LocalStage], states: ModuleStates, calls: Sequence[Call], scales: Mapping[str, Scale]
    ) -> StepInputs:
        """Bind the stages, and name what they were called with."""
        given, sources = {}, self.schedule.placement.sources
        for index, stage in stages.items():
            stage.begin_step(states[index])
            own = [(call.args, accepted(stage.module, call.kwargs, stage.handed), call.target) for call in calls]
            given[index] = values_of(stage.graphs, own, is_source=index in sources)
        return StepInputs(stages, given, scales, [call.target for call in calls])

    @contextlib.contextmanager
    def _running(self, stages: Mapping[int, LocalStage]) -> Iterator[None]:
        """Afterwards the stages keep nothing of the step, even if it failed."""
        self.stages = stages
        try:
            yield
        finally:
            self.stages = {}
            for stage in stages.values():
                stage.end_step()
