"""Run the lowered actions of one rank, one after the other, on one thread."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from annopipe.graphs.stage_graphs import LOSS
from annopipe.pipeline.calls.step_inputs import StepInputs
from annopipe.pipeline.labels import label
from annopipe.pipeline.places import InAction
from annopipe.pipeline.ranks.routing import Routing
from annopipe.pipeline.stage_forms import Forms
from annopipe.pipeline.stages.combined import Combined, Parts, parts_of
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.actions import COMPUTE, MESSAGES, PARAMETERS, Action

__all__ = ["Interpreter", "Operation"]

Operation = Callable[[int, int | None], None]
_BUILT_IN = frozenset((*COMPUTE, *MESSAGES))
Step = Callable[[StepInputs], None]


class Interpreter:
    """One rank's part of a prepared pipeline.

    Attributes:
        forms: what is compiled and captured of its graphs.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        stages: Mapping[int, LocalStage],
        routing: Routing,
        combined: Mapping[Parts, Combined],
        operations: Mapping[str, Operation],
        forms: Forms,
    ) -> None:
        self.forms = forms
        self._stages, self._routing, self._combined, self._operations = stages, routing, combined, operations
        self._steps = [(str(action), InAction(action), self._step_of(action)) for action in actions]
        self._last = [Action("REDUCE_GRAD", stage) for stage in stages]  # for schedules that have none

    def run(self, inputs: StepInputs) -> None:
        """Do all actions of a step.

        Raises PipelineError, with the text of the action, when one fails.
        """
        with self._routing.step():
            for text, place, step in self._steps:
                with place, label(text):
                    step(inputs)
        for last in self._last:
            with InAction(last), label(str(last)):
                self._stages[last.stage].parameters.reduce()

    def _step_of(self, action: Action) -> Step:
        """The function that does an action."""
        kind, stage, microbatch = action.kind, action.stage, action.microbatch
        combined = self._combined.get(parts_of(action))  # none of backwards that nothing is differentiated in
        if combined is not None or action.parts or action.nano_batches > 1:
            return partial(self._combine, action.singles, combined)
        if kind in PARAMETERS:
            return partial(self._keep_parameters, kind, stage)
        if microbatch is None or kind not in _BUILT_IN:
            return partial(self._operate, kind, stage, microbatch)
        if kind in MESSAGES:
            move = self._routing.send if kind.startswith("SEND") else self._routing.receive
            return partial(_move, move, action)
        return partial(self._compute, kind, stage, microbatch)

    def _keep_parameters(self, kind: str, stage: int, _: StepInputs) -> None:
        parameters = self._stages[stage].parameters
        {"UNSHARD": parameters.unshard, "RESHARD": parameters.reshard, "REDUCE_GRAD": parameters.reduce}[kind]()

    def _compute(self, kind: str, stage: int, microbatch: int, inputs: StepInputs) -> None:
        local = self._stages[stage]
        if kind != "F" and not local.has_backward:
            return
        self._begin(kind, local, microbatch, inputs)
        self._end(kind, local, microbatch, [local.call(kind, microbatch)])

    def _combine(self, parts: Sequence[Action], combined: Combined | None, inputs: StepInputs) -> None:
        given = [(part.kind, self._stages[part.stage], part.microbatch or 0) for part in parts]
        for kind, local, microbatch in given:
            if kind == "F" or local.has_backward:
                self._begin(kind, local, microbatch, inputs)
        running = [(kind, local, microbatch) for kind, local, microbatch in given if local.computes(kind, microbatch)]
        taken = [local.take(kind, microbatch) for kind, local, microbatch in running]
        found = iter(combined([values for lanes in taken for values in lanes]) if combined is not None else ())
        for part, lanes in zip(running, taken, strict=True):
            self._end(*part, [next(found) for _ in lanes])

    def _begin(self, kind: str, local: LocalStage, microbatch: int, inputs: StepInputs) -> None:
        """Bring in what a stage needs from others."""
        if kind == "F":
            values = dict(inputs.of(local.index, microbatch))
            arrived = self._routing.take_inputs(local.index, microbatch)
            values |= zip(local.inputs, arrived, strict=False)  # further inputs come with the step
            local.start_forward(microbatch, values)
        elif kind != "W":
            gradients = self._routing.take_gradients(local.index, microbatch)
            if local.batch_loss is not None:
                gradients |= local.batch_loss.gradients(microbatch, inputs.targets, inputs.scales[LOSS])
            local.start_backward(microbatch, gradients, inputs.scales)

    def _end(self, kind: str, local: LocalStage, microbatch: int, results: list[dict[str, Any]]) -> None:
        """Hand on what others need, and keep what the stage needs itself."""
        result = local.finish(kind, microbatch, results)
        if kind == "F":
            self._routing.hand_outputs(local.index, microbatch, result)
        elif kind != "W":
            gradients = [None if port is None else result.get(port) for port in local.input_gradients]
            self._routing.hand_gradients(local.index, microbatch, gradients)

    def _operate(self, kind: str, stage: int, microbatch: int | None, _: StepInputs) -> None:
        self._operations[kind](stage, microbatch)  # looked up now: it may be registered anew between steps


def _move(move: Callable[[Action], None], action: Action, _: StepInputs) -> None:
    move(action)
