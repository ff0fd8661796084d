"""One stage on the rank that holds it: its module, its graphs, and what its microbatches have left there."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from annopipe.errors import PipelineError
from annopipe.graphs.stage_graphs import LOSS, StageGraphs
from annopipe.pipeline.calls.module_state import ModuleState
from annopipe.pipeline.stages.batch_loss import BatchLoss
from annopipe.pipeline.stages.kept_values import KeptValues, Scales, Values
from annopipe.pipeline.stages.lanes import Lanes, NanoBatches
from annopipe.pipeline.stages.microbatch_loss import MicrobatchLoss
from annopipe.pipeline.stages.parameters import StageParameters

__all__ = ["LocalStage"]


class LocalStage:
    """A stage that this rank holds.

    Attributes:
        index: its number.
        module, graphs: what it is and what it was traced into.
        parameters: of the module, gathered where they are sharded, and their gradients.
        inputs: input port of each tensor that the stage before hands over, or of each argument's tensor.
        input_gradients: for each of these, the port of its gradient; None where there is none.
        losses: by name and microbatch: of ``loss_fn`` on the last stage, and auxiliary ones.
        outputs: what forward returned, by microbatch, where it is kept.
        handed: how many arguments the stages before hand over.
        keeps_outputs: whether what forward returns is kept.
        batch_loss: a loss over the outputs of all microbatches; None where there is none.
        outside_gradients: by microbatch and input port, for inputs that the step was called with.

    Args:
        inside: how many of the inputs the stages before hand over.
        handed, keeps_outputs: see above.
        fixed_sums: whether gradients are added up in the order of microbatches, whatever order they come in.
        first: the first microbatch that the stage sees.
        nano_batches: of the microbatches that do not run as a whole.
        nano_loss: ``loss_fn`` for those, on the last stage.
    """

    def __init__(
        self,
        index: int,
        module: nn.Module,
        graphs: StageGraphs,
        *,
        inside: int = 0,
        handed: int = 0,
        keeps_outputs: bool = False,
        fixed_sums: bool = False,
        batch_loss: BatchLoss | None = None,
        first: int = 0,
        nano_batches: Mapping[int, NanoBatches] = MappingProxyType({}),
        nano_loss: MicrobatchLoss | None = None,
    ) -> None:
        self.index, self.module, self.graphs = index, module, graphs
        self.inputs = [f"input.{path}" for path in graphs.arguments.paths]
        gradients = (
            {port.source: port.name for port in graphs.backward.outputs if port.role == "input_grad"}
            if graphs.backward
            else {}
        )
        self.input_gradients = [gradients.get(path) for path in graphs.arguments.paths]
        self.losses: dict[str, dict[int, torch.Tensor]] = {name: {} for name in graphs.layout.losses}
        self.outputs: dict[int, Any] = {}
        self.outside_gradients: dict[tuple[int, str], torch.Tensor] = {}
        self._outside = [
            (gradient, path)
            for gradient, path in zip(self.input_gradients[inside:], self.inputs[inside:], strict=True)
            if gradient is not None
        ]
        self.batch_loss, self.handed = batch_loss, handed
        self._outside += [(gradients[p], f"input.{p}") for p in graphs.target_arguments.paths if p in gradients]
        self.keeps_outputs, self._first = keeps_outputs, first
        self.parameters = StageParameters(graphs, fixed_sums=fixed_sums, first=first)
        self._whole = Lanes([KeptValues(index, graphs)])
        self._nano_batches, self._nano_loss = nano_batches, nano_loss
        self._updates = [(port.name, port.source) for port in graphs.forward.outputs if port.role == "buffer_update"]

    @property
    def has_backward(self) -> bool:
        """Whether anything in or before the stage is differentiated."""
        return self.graphs.backward is not None

    def computes(self, kind: str, microbatch: int) -> bool:
        """Whether an action has a graph: nano-batches have no backward where only the target gets a gradient."""
        return kind == "F" or (self.has_backward and self.lanes(microbatch).kept[0].graphs.backward is not None)

    @property
    def in_flight(self) -> int:
        """How many microbatches have left values here."""
        return len({microbatch for kept in self._all_kept for microbatch in kept.microbatches})

    @property
    def _all_kept(self) -> list[KeptValues]:
        lanes = dict.fromkeys((self._whole, *self._nano_batches.values()))
        return [kept for each in lanes for kept in each.kept]

    def lanes(self, microbatch: int) -> Lanes:
        """What a microbatch runs as."""
        return self._nano_batches.get(microbatch, self._whole)

    def own_losses(self) -> Mapping[int, torch.Tensor]:
        """Of ``loss_fn``, by microbatch; a loss over the whole batch counts as that of the first one."""
        if self.batch_loss is not None and self.batch_loss.found is not None:
            return {self._first: self.batch_loss.found}
        return self.losses.get(LOSS, {})

    def begin_step(self, state: ModuleState) -> None:
        """Bind the module's parameters and buffers.

        Args:
            state: of the module now; its key is the one that the module was traced with.

        Raises CaptureError when a Python value that the module was traced with has changed.
        """
        self.graphs.sources.check({"self": self.module})
        self.parameters.begin_step(state.tensors)
        self._clear()

    def end_step(self) -> None:
        """Forget what the step has left here, and the module's own tensors."""
        self.parameters.end_step()
        self._clear()

    def _clear(self) -> None:
        for losses in self.losses.values():
            losses.clear()
        for kept in self._all_kept:
            kept.clear()
        self.outputs.clear()
        self.outside_gradients.clear()
        if self.batch_loss is not None:
            self.batch_loss.begin()
        if self._nano_loss is not None:
            self._nano_loss.clear()

    def call(self, kind: str, microbatch: int) -> Values:
        """Run the graph of one action on what is there for it, for a microbatch that runs as a whole."""
        return self._whole.kept[0].call(kind, microbatch, self.parameters.unshard())

    def start_forward(self, microbatch: int, inputs: Mapping[str, Any]) -> None:
        """Take the inputs of a microbatch."""
        lanes = self.lanes(microbatch)
        for kept, own in zip(lanes.kept, lanes.split_inputs(inputs), strict=True):
            kept.start_forward(microbatch, {**self.parameters.bound, **own})
        if self._nano_loss is not None and lanes is not self._whole:
            self._nano_loss.start(microbatch, inputs)

    def start_backward(self, microbatch: int, gradients: Mapping[str, torch.Tensor], scales: Scales) -> None:
        """Take the gradients of a microbatch's outputs and losses; an output whose gradient nobody has gets zeros."""
        lanes = self.lanes(microbatch)
        if self._nano_loss is not None and lanes is not self._whole:
            of_loss = self._nano_loss.backward(microbatch, scales)
            gradients = {**gradients, **of_loss.outputs}
            for path, gradient in of_loss.targets.items():
                self.outside_gradients[microbatch, path] = gradient
        if not self.computes("B", microbatch):
            return
        given = zip(lanes.kept, lanes.split_gradients(gradients), lanes.split_scales(scales), strict=True)
        for kept, own, scale in given:
            kept.start_backward(microbatch, own, scale)

    def take(self, kind: str, microbatch: int) -> list[Values]:
        """For each lane what is there for the graph of an action; see ``KeptValues.take``."""
        gathered = self.parameters.unshard()
        return [kept.take(kind, microbatch, gathered) for kept in self.lanes(microbatch).kept]

    def kept(self, microbatch: int) -> Mapping[str, Any]:
        """What a microbatch has left here for later graphs, by port name; of nano-batches with their number before."""
        first, *others = self._left(microbatch)
        if not others:
            return first
        return {f"{lane}.{name}": value for lane, own in enumerate([first, *others]) for name, value in own.items()}

    def _left(self, microbatch: int) -> list[Values]:
        """What each lane of a microbatch has left, and its loss where that is apart; nothing where there is nothing."""
        found = [kept.of(microbatch) for kept in self.lanes(microbatch).kept if microbatch in kept.microbatches]
        return found + (self._nano_loss.kept(microbatch) if self._nano_loss is not None else [])

    def map_saved(self, microbatch: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put what a function makes of each tensor in the place of what a microbatch has saved here.

        Raises PipelineError for a microbatch that has saved nothing.
        """
        left = self._left(microbatch)
        if not left:
            raise PipelineError(f"stage {self.index} keeps nothing of microbatch {microbatch} now")
        changed: dict[int, torch.Tensor] = {}  # one tensor may be saved under several names
        for kept in left:
            for name, value in kept.items():
                if isinstance(value, torch.Tensor) and name not in self.parameters.bound:
                    if id(value) not in changed:
                        changed[id(value)] = change(value)
                    kept[name] = changed[id(value)]

    def finish(self, kind: str, microbatch: int, results: Sequence[Values]) -> Values:
        """Keep of the lanes' results what later graphs take, and add up gradients.

        Returns:
            Outputs, or gradients of inputs, of the whole microbatch.
        """
        lanes = self.lanes(microbatch)
        found = lanes.join(kind, results)
        if kind == "F":
            self._finish_forward(microbatch, found)
        else:
            self.parameters.accumulate(microbatch, results)
            for gradient, path in self._outside:
                if gradient in found:
                    self.outside_gradients[microbatch, path] = found[gradient]
        for kept, result in zip(lanes.kept, results, strict=True):
            kept.finish(kind, microbatch, result)
        return found

    def _finish_forward(self, microbatch: int, result: Values) -> None:
        if self._nano_loss is not None and self.lanes(microbatch) is not self._whole:
            result[LOSS] = self._nano_loss.forward(microbatch, result)
        for name, source in self._updates:
            self.parameters.write_buffer(source, result[name])
        for name, found in self.losses.items():
            found[microbatch] = result[name]
        if self.keeps_outputs:
            self.outputs[microbatch] = self.graphs.result(result)
        if self.batch_loss is not None:
            self.batch_loss.keep(microbatch, result)
