"""What one step is called with, as its stages take it, and the gradients that go back to the caller."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from annopipe.pipeline.calls.microbatches import graph_values
from annopipe.pipeline.stages.batch_loss import Scale
from annopipe.pipeline.stages.stage import LocalStage

__all__ = ["Scale", "StepInputs"]


class StepInputs:
    """The values of a step by stage, microbatch and input port.

    Args:
        stages: of this rank.
        given: by stage, for each microbatch what the step was called with, by input port.
        scales: what each loss is multiplied with before it is differentiated, by its name.
        targets: of the loss, for each microbatch; None where this rank has none.
    """

    def __init__(
        self,
        stages: Mapping[int, LocalStage],
        given: Mapping[int, Sequence[Mapping[str, torch.Tensor]]],
        scales: Mapping[str, Scale],
        targets: Sequence[Any] = (),
    ) -> None:
        self.scales, self.targets = scales, targets
        self._values = {
            index: [graph_values(stages[index].graphs, values) for values in found] for index, found in given.items()
        }
        self._differentiated = {
            (index, microbatch, name): value
            for index, found in given.items()
            for microbatch, values in enumerate(found)
            for name, value in values.items()
            if value.requires_grad
        }

    def of(self, stage: int, microbatch: int) -> Mapping[str, Any]:
        """Values of one microbatch of a stage, but for what the stage before hands over."""
        return self._values[stage][microbatch]

    def backward(self, stages: Mapping[int, LocalStage]) -> None:
        """Give the caller's tensors their gradients, and what the caller computed them from."""
        tensors, gradients = [], []
        for (index, microbatch, name), value in self._differentiated.items():
            gradient = stages[index].outside_gradients.get((microbatch, name))
            if gradient is not None:
                tensors.append(value)
                gradients.append(gradient)
        if tensors:
            torch.autograd.backward(tensors, gradients)
