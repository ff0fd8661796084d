"""Run the lowered actions of one rank, one after the other, on one thread."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from annopipe.pipeline.acknowledgements import Message
from annopipe.pipeline.boundary import Link
from annopipe.pipeline.combined import Combined, Parts, parts_of
from annopipe.pipeline.labels import label
from annopipe.pipeline.messages import Messages, Received
from annopipe.pipeline.places import InAction
from annopipe.pipeline.stage import LocalStage
from annopipe.pipeline.step_inputs import StepInputs
from annopipe.scheduling.actions import COMPUTE, MESSAGES, PARAMETERS, Action
from annopipe.scheduling.placement import Placement

__all__ = ["Interpreter", "Operation"]

Operation = Callable[[int, int | None], None]
_BUILT_IN = frozenset((*COMPUTE, *MESSAGES))


Step = Callable[[StepInputs], None]


class Interpreter:
    """One rank's part of a prepared pipeline.

    What a stage hands on waits in an inbox, by receiving stage and microbatch: as tensors when both stages are on this
    rank, as a message that has been asked for when they are not; and in the outbox until it is sent.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        placement: Placement,
        stages: Mapping[int, LocalStage],
        links: Mapping[int, Link],
        combined: Mapping[Parts, Combined],
        messages: Messages,
        operations: Mapping[str, Operation],
        taken: Mapping[Message, int] = MappingProxyType({}),
    ) -> None:
        self._stages, self._links, self._combined = stages, links, combined
        self._messages, self._operations = messages, operations
        self._rank_of = placement.rank_of
        self._taken = taken  # by received message: how many of this rank's have been taken when it is there
        self._inboxes: dict[str, dict[tuple[int, int], list[torch.Tensor] | Received]] = {"F": {}, "B": {}}
        self._outbox: dict[tuple[str, int, int], list[torch.Tensor]] = {}
        self._steps = [(str(action), InAction(action), self._step_of(action)) for action in actions]

    def run(self, inputs: StepInputs) -> None:
        """Do all actions of a step.

        Raises PipelineError, with the text of the action, when one fails.
        """
        self._messages.begin()
        try:
            for text, place, step in self._steps:
                with place, label(text):
                    step(inputs)
            self._messages.flush()
        finally:
            self._outbox.clear()  # of a step that failed
            for inbox in self._inboxes.values():
                inbox.clear()

    def _step_of(self, action: Action) -> Step:
        """The function that does an action."""
        kind, stage, microbatch = action.kind, action.stage, action.microbatch
        if action.parts:
            combined = self._combined.get(parts_of(action))  # none of backwards that nothing is differentiated in
            return partial(self._combine, action.parts, combined) if combined is not None else _nothing
        if kind in PARAMETERS:
            return _nothing  # the parameters of a stage are whole
        if microbatch is None or kind not in _BUILT_IN:
            return partial(self._operate, kind, stage, microbatch)
        if kind.startswith("SEND"):
            return partial(self._send, kind[-1], stage, microbatch)
        if kind.startswith("RECV"):
            return partial(self._receive, kind[-1], stage, microbatch)
        return partial(self._compute, kind, stage, microbatch)

    def _compute(self, kind: str, stage: int, microbatch: int, inputs: StepInputs) -> None:
        local = self._stages[stage]
        if kind != "F" and not local.has_backward:
            return
        self._begin(kind, local, microbatch, inputs)
        result = local.call(kind, microbatch)
        self._end(kind, local, microbatch, result)

    def _combine(self, parts: Sequence[Action], combined: Combined, inputs: StepInputs) -> None:
        running = [(part.kind, self._stages[part.stage], part.microbatch or 0) for part in parts]
        values: list[Mapping[str, Any]] = []
        for kind, local, microbatch in running:
            present = kind == "F" or local.has_backward
            if present:
                self._begin(kind, local, microbatch, inputs)
            values.append(local.values(microbatch) if present else {})
        for (kind, local, microbatch), result in zip(running, combined(values), strict=True):
            if kind == "F" or local.has_backward:
                self._end(kind, local, microbatch, result)

    def _begin(self, kind: str, local: LocalStage, microbatch: int, inputs: StepInputs) -> None:
        """Bring in what a stage needs from others."""
        if kind == "F":
            values = dict(inputs.of(local.index, microbatch))
            link = self._links.get(local.index - 1)
            if link is not None:
                arrived = self._take("F", local.index, microbatch)
                values |= zip(local.inputs, link.laid_out(arrived), strict=False)  # further inputs come with the step
            local.start_forward(microbatch, values)
        elif kind != "W":
            link = self._links.get(local.index)
            gradients = self._take("B", local.index, microbatch) if link is not None and link.returning else []
            named = dict(zip(link.returning_ports, gradients, strict=True)) if link is not None else {}
            local.start_backward(microbatch, named, inputs.scales)

    def _end(self, kind: str, local: LocalStage, microbatch: int, result: dict[str, Any]) -> None:
        """Hand on what others need, and keep what the stage needs itself."""
        if kind == "F":
            link = self._links.get(local.index)
            if link is not None:
                outputs = [result[leaf.port] for leaf in link.boundary.tensors]
                self._hand_on("F", local.index, local.index + 1, microbatch, outputs)
        elif kind != "W":
            link = self._links.get(local.index - 1)
            if link is not None and link.returning:
                gradients = [result[local.gradient_port(index)] for index in link.returning]
                self._hand_on("B", local.index, local.index - 1, microbatch, gradients)
        local.finish(kind, microbatch, result)

    def _hand_on(self, way: str, stage: int, to: int, microbatch: int, tensors: list[torch.Tensor]) -> None:
        if self._rank_of[to] == self._rank_of[stage]:
            self._inboxes[way][to, microbatch] = tensors
        else:
            self._outbox[way, stage, microbatch] = tensors

    def _send(self, way: str, stage: int, microbatch: int, _: StepInputs) -> None:
        tensors = self._outbox.pop((way, stage, microbatch), [])
        to = stage + 1 if way == "F" else stage - 1
        text = f"{stage}SEND_{way}{microbatch} (stage {stage}, microbatch {microbatch})"
        self._messages.send(text, self._rank_of[to], tensors)  # waited for later, outside of its action

    def _receive(self, way: str, stage: int, microbatch: int, _: StepInputs) -> None:
        source = stage - 1 if way == "F" else stage + 1
        link = self._links[min(stage, source)]
        buffers = link.forward_buffers() if way == "F" else link.backward_buffers()
        text = f"{stage}RECV_{way}{microbatch}"
        self._inboxes[way][stage, microbatch] = self._messages.receive(text, self._rank_of[source], buffers)

    def _take(self, way: str, stage: int, microbatch: int) -> list[torch.Tensor]:
        found = self._inboxes[way].pop((stage, microbatch))
        if not isinstance(found, Received):
            return found
        tensors = self._messages.wait(found)
        if found.works:  # nothing was sent otherwise, and so nothing is known
            self._messages.taken(found.sender, self._taken.get((way, stage, microbatch), 0))
        return tensors

    def _operate(self, kind: str, stage: int, microbatch: int | None, _: StepInputs) -> None:
        self._operations[kind](stage, microbatch)  # looked up now: it may be registered anew between steps


def _nothing(_: StepInputs) -> None:
    return
