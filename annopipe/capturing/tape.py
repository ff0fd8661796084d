"""The captured runs of one graph while it is called: recorded the first time, replayed afterwards.

A recording reads and writes the same memory each time. So what a run takes is either at an address that stays (a
parameter, a result of an earlier run of the same call) or is copied to memory of its own first; and what outlives the
call is copied out of the recording's results. Nothing that a recording writes to is looked at after the call, so calls
of one graph may follow each other in any pattern, with any number of microbatches in flight.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

__all__ = ["Function", "NotRecorded", "Recorder", "Recording", "Segment", "Tape"]

Tensors = Sequence[torch.Tensor]
# A run, from the tensors that it takes to those that it makes.
Function = Callable[..., Tensors]


class NotRecorded(Exception):  # noqa: N818 (no error: the run goes on operation by operation)
    """A run cannot be recorded; the text says why."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """A run that has been recorded: ``replay`` computes its results anew, from and to the same memory."""

    results: Tensors
    replay: Callable[[], None]


class Recorder(Protocol):
    """What records runs: on a GPU as CUDA graphs."""

    device: str  # the type of the device

    def record(self, function: Function, arguments: Tensors) -> Recording:
        """Record a run on tensors whose memory stays, and have its results.

        Raises NotRecorded.
        """

    def copies(self, values: Tensors) -> list[torch.Tensor]:
        """New tensors with these values, laid out alike."""

    def copy(self, targets: Tensors, values: Tensors) -> None:
        """Write values to targets."""


@dataclasses.dataclass
class Segment:
    """One run.

    function: what it computes.
    kept: the positions of results that are used in this call, where they are.
    leaving: the positions of results that outlive the call.
    reason: why it could not be recorded; "" if it could, or has not run yet.
    """

    function: Function
    kept: tuple[int, ...]
    leaving: tuple[int, ...]
    recording: Recording | None = None
    reason: str = ""


class Tape:
    """The runs of one graph; the graph calls its methods.

    Attributes:
        segments: the runs.
    """

    def __init__(self, recorder: Recorder, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self._recorder = recorder
        self._buffers: dict[int, list[torch.Tensor]] = {}
        self._addresses: list[int] | None = None

    def begin(self, *staying: torch.Tensor) -> None:
        """A call starts; when one of the tensors that stay is elsewhere now, all is recorded anew."""
        addresses = [tensor.data_ptr() for tensor in staying]
        if addresses != self._addresses:
            self._addresses = addresses
            for segment in self.segments:
                segment.recording = None

    def stage(self, number: int, values: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Values that may be anywhere, where the run of that number, and later ones, read them."""
        buffers = self._buffers.get(number)
        if buffers is None:
            buffers = self._buffers[number] = self._recorder.copies(values)
        else:
            self._recorder.copy(buffers, values)
        return buffers

    def run(self, number: int, arguments: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The results of a run: those that are used in this call, then those that outlive it."""
        segment = self.segments[number]
        if segment.recording is not None:
            segment.recording.replay()
            results = segment.recording.results
        elif segment.reason:
            results = segment.function(*arguments)
        else:
            results = self._record(segment, arguments)
        kept = [results[position] for position in segment.kept]
        if not segment.leaving:
            return kept
        return kept + self._recorder.copies([results[position] for position in segment.leaving])

    def _record(self, segment: Segment, arguments: tuple[torch.Tensor, ...]) -> Tensors:
        try:
            segment.recording = self._recorder.record(segment.function, arguments)
        except NotRecorded as refusal:
            segment.reason = str(refusal)
            return segment.function(*arguments)
        return segment.recording.results
