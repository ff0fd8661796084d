"""Messages between the ranks of a pipeline: receives posted ahead of use, sends kept until they have been taken."""

import dataclasses
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from annopipe.errors import PipelineError
from annopipe.pipeline.ranks.closing import reason_of, was_closed

__all__ = ["Messages", "Received"]


@dataclasses.dataclass
class Received:
    """A message that has been asked for: wait, then take the tensors."""

    text: str
    sender: int
    tensors: list[torch.Tensor]
    works: list[Any]


@dataclasses.dataclass
class _Sent:
    """A tensor on its way, and the number of its message in the step."""

    number: int
    work: Any
    tensor: torch.Tensor
    text: str


class Messages:
    """Point-to-point messages of one rank over a process group; in order for every pair of ranks.

    Messages of no bytes are not sent: both sides know that there are none.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
        self._group, self._timeout = group, timeout
        # By receiver, the oldest first: what was sent and not yet known to be taken, with its number in the step.
        self._sent: dict[int, deque[_Sent]] = {}
        self._numbers: dict[int, int] = {}

    def begin(self) -> None:
        """Count the messages of a step from 0."""
        self._sent.clear()
        self._numbers.clear()

    def send(self, text: str, receiver: int, tensors: Sequence[torch.Tensor], tag: int = 0) -> None:
        """Start to send; the tensors must not change before the message is known to be taken."""
        number = self._numbers.get(receiver, 0)
        self._numbers[receiver] = number + 1
        pending = self._sent.setdefault(receiver, deque())
        for tensor in tensors:
            if tensor.numel():
                dense = tensor.contiguous()
                work = dist.isend(dense, group=self._group, tag=tag, group_dst=receiver)
                pending.append(_Sent(number, work, dense, text))

    def taken(self, receiver: int, count: int) -> None:
        """Let go of the first `count` messages of the step to a receiver, which is known to have them."""
        pending = self._sent.get(receiver)
        while pending and pending[0].number < count:
            self._finish(pending[0].work, f"{pending[0].text} waited for rank {receiver} to take it")
            pending.popleft()

    def receive(self, text: str, sender: int, buffers: list[torch.Tensor], tag: int = 0) -> Received:
        """Ask for a message; of those with one tag, in the order in which they are sent."""
        asked = [buffer for buffer in buffers if buffer.numel()]
        works = [dist.irecv(buffer, group=self._group, tag=tag, group_src=sender) for buffer in asked]
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
        for receiver, count in self._numbers.items():
            self.taken(receiver, count)

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
