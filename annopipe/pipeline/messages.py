"""Messages between the ranks of a pipeline: receives posted ahead of use, sends that are waited for at the end only."""

import dataclasses
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from annopipe.errors import PipelineError
from annopipe.pipeline.closing import reason_of, was_closed

__all__ = ["Messages", "Received"]


@dataclasses.dataclass
class Received:
    """A message that has been asked for: wait, then take the tensors."""

    text: str
    sender: int
    tensors: list[torch.Tensor]
    works: list[Any]


class Messages:
    """Point-to-point messages of one rank over a process group; in order for every pair of ranks.

    Messages of no bytes are not sent: both sides know that there are none.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
        self._group, self._timeout = group, timeout
        self._sent: deque[tuple[Any, torch.Tensor, str, int]] = deque()

    def send(self, text: str, receiver: int, tensors: Sequence[torch.Tensor]) -> None:
        """Start to send; the tensors must not change before `flush`."""
        for tensor in tensors:
            if tensor.numel():
                dense = tensor.contiguous()
                work = dist.isend(dense, group=self._group, group_dst=receiver)
                self._sent.append((work, dense, text, receiver))
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()

    def receive(self, text: str, sender: int, buffers: list[torch.Tensor]) -> Received:
        """Ask for a message."""
        works = [dist.irecv(buffer, group=self._group, group_src=sender) for buffer in buffers if buffer.numel()]
        return Received(text, sender, buffers, works)

    def wait(self, received: Received) -> list[torch.Tensor]:
        """The tensors, when they are there.

        Raises PipelineError when they do not come in time, or the sender is gone.
        """
        for work in received.works:
            self._finish(work, f"{received.text} waited for rank {received.sender}")
        return received.tensors

    def flush(self) -> None:
        """Wait until everything that was sent has left."""
        while self._sent:
            work, _, text, receiver = self._sent[0]
            self._finish(work, f"{text} waited for rank {receiver} to take it")
            self._sent.popleft()

    def _finish(self, work: Any, what: str) -> None:
        try:
            work.wait(self._timeout)
        except RuntimeError as error:
            limit_s = self._timeout.total_seconds()
            happened = (
                "whose connection was closed: look at that rank's output"
                if was_closed(error)
                else f"in vain, {limit_s:g} s long: it has stalled, or Pipeline needs a longer timeout"
            )
            raise PipelineError(f"{what}, {happened} ({reason_of(error)})") from error
