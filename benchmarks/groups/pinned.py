"""A process group of one GPU whose messages travel through pinned host memory, on the copy engines.

A stand-in for a network where there is one GPU: an all-to-all of one rank with itself costs two copies over the bus and
no kernel, so computation can hide it like a real one. Tables label it `pinned copy`.

    pinned.register()
    dist.init_process_group("pinned", store=dist.HashStore(), rank=0, world_size=1)

Needs: world size 1, CUDA tensors. CPU tensors take the same path for tests, with streams that do nothing.
Does: a launch puts the two copies on a side stream, behind the work issued so far; the messages of one device run in
the order of their launches. `wait` makes the current stream wait for the second copy. All-gather and reduce-scatter
over one rank are the same copy; all-reduce and broadcast leave the tensors as they are and take no time.
Guarantees: neither launch nor wait blocks the host, except when the staging buffer grows (warm up with the largest
message); tensors may be dropped right after the launch; waiting again is harmless.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from annopipe.errors import PipelineError
from benchmarks.groups import gloo

__all__ = ["BACKEND", "LABEL", "CopyLane", "CopyWork", "PinnedGroup", "create", "register"]

BACKEND = "pinned"
LABEL = "pinned copy"


class CopyLane:
    """One device's side stream, and the host buffer that its messages pass through one after the other.

    `streams` is torch.cuda, or torch.cpu, whose streams have the same methods and do nothing.
    """

    def __init__(self, device: torch.device, streams: Any, side: Any) -> None:
        self._device = device
        self._streams = streams
        self._side = side
        self._staging = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def on(cls, device: torch.device) -> "CopyLane":
        """Make the lane of a device."""
        if device.type not in {"cuda", "cpu"}:
            raise PipelineError(
                f"The pinned process group copies tensors on cuda (in tests also cpu), not on {device}."
            )
        streams: Any = torch.get_device_module(device)
        return cls(device, streams, streams.Stream(device) if device.type == "cuda" else streams.Stream())

    def launch(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> "CopyWork":
        """Copy each input to its output by way of the host, behind what the current stream has been given so far."""
        self._side.wait_stream(self._streams.current_stream(self._device))
        with torch.no_grad(), self._streams.stream(self._side):
            for target, source in zip(outputs, inputs, strict=True):
                # One buffer serves any number of messages in flight: on one stream, the next message is written to it
                # after the one before has been read from it.
                host = self._host_like(source)
                host.copy_(source, non_blocking=True)
                target.copy_(host.view(target.shape), non_blocking=True)
        for tensor in (*outputs, *inputs):
            if tensor.is_cuda:  # dropped early, its memory is reused only when the side stream is past the copies
                tensor.record_stream(self._side)
        return CopyWork(self, self._side.record_event())

    def wait(self, event: torch.Event) -> None:
        """Make the current stream wait for an event."""
        self._streams.current_stream(self._device).wait_event(event)

    def _host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        size_bytes = tensor.numel() * tensor.element_size()
        if size_bytes > self._staging.numel():
            # The old buffer may be in use still: PyTorch's allocator of pinned memory keeps it until its copies end.
            rounded = 1 << (size_bytes - 1).bit_length()  # powers of two, so that growing sizes allocate seldom
            self._staging = torch.empty(rounded, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._staging[:size_bytes].view(tensor.dtype).view(tensor.shape)


class CopyWork(dist.Work):
    """A message on its way; without an event (CPU, or nothing to copy) it has arrived."""

    def __init__(self, lane: CopyLane | None = None, event: torch.Event | None = None) -> None:
        super().__init__()
        self._lane = lane
        self._event = event

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002 - streams know no timeout
        """Put what the current stream is given next behind the message; the host goes on at once."""
        if self._lane is not None and self._event is not None:
            self._lane.wait(self._event)
        return True

    def is_completed(self) -> bool:
        """Whether the message has arrived."""
        return self._event is None or self._event.query()


class PinnedGroup(gloo.GlooGroup):
    """A group of one rank that sends to itself through pinned memory."""

    def __init__(self, info: gloo.GroupInfo) -> None:
        if info.group_size != 1:
            raise PipelineError(
                f"The pinned process group is for one rank, not {info.group_size}: use NCCL between several GPUs."
            )
        super().__init__(info)
        self._lanes: dict[torch.device, CopyLane] = {}

    def issue(self, collective: gloo.Collective) -> dist.Work:
        """Copy inputs to outputs; with one rank that is what every collective out of place amounts to."""
        if collective.kind in {"all-reduce", "broadcast"}:
            return CopyWork()
        for target, source in zip(collective.outputs, collective.inputs, strict=True):
            if (target.numel(), target.dtype, target.device) != (source.numel(), source.dtype, source.device):
                raise PipelineError(
                    f"With one rank the output of an {collective.kind} is as large as its input, but the output is "
                    f"{tuple(target.shape)} {target.dtype} on {target.device} and the input {tuple(source.shape)} "
                    f"{source.dtype} on {source.device}: give splits that add up to all rows."
                )
        device = collective.inputs[0].device
        if device not in self._lanes:
            self._lanes[device] = CopyLane.on(device)
        return self._lanes[device].launch(collective.outputs, collective.inputs)


def _create(info: gloo.GroupInfo, options: object) -> PinnedGroup:
    if options is not None:
        raise PipelineError(f"A process group with backend 'pinned' takes no pg_options, not {options!r}.")
    return PinnedGroup(info)


def register() -> None:
    """Make "pinned" a backend of torch.distributed; call it before naming the backend, as often as you like."""
    gloo.register(BACKEND, _create, devices=["cpu", "cuda"])


def create() -> dist.ProcessGroup:
    """Make a pinned group of this rank alone, in a job of one rank."""
    if not dist.is_initialized():
        raise PipelineError("pinned.create needs a default process group: call dist.init_process_group first.")
    register()
    group: dist.ProcessGroup = dist.new_group(backend=BACKEND)
    return group
