"""Recordings without a GPU: a replay computes from the same memory to the same memory, as one of a CUDA graph does."""

import torch

from annopipe.capturing.tape import Function, NotRecorded, Recording, Tensors


class EmulatedRecorder:
    """Records on a processor.

    Attributes:
        recorded, replayed: how many runs were.
        refuses: a name of an operation; runs with it cannot be recorded.
    """

    device = "cpu"

    def __init__(self, refuses: str = "") -> None:
        self.recorded = self.replayed = 0
        self.refuses = refuses
        self._own: list[torch.Tensor] = []

    def record(self, function: Function, arguments: Tensors) -> Recording:
        if self.refuses and self.refuses in function.__self__.code:  # type: ignore[attr-defined]
            raise NotRecorded("an operation of it makes the host wait for the GPU")
        results = tuple(function(*arguments))
        taken = {value.untyped_storage().data_ptr() for value in arguments}
        self._own += [value for value in results if value.untyped_storage().data_ptr() not in taken]
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for target, value in zip(results, function(*arguments), strict=True):
                if target.data_ptr() != value.data_ptr():
                    target.copy_(value)

        return Recording(results, replay)

    def spoil(self) -> None:
        """Overwrite what recordings write to: nothing may look at it between two calls."""
        for value in self._own:
            value.fill_(77)

    def copies(self, values: Tensors) -> list[torch.Tensor]:
        return [value.clone() for value in values]

    def copy(self, targets: Tensors, values: Tensors) -> None:
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
