"""A process group over gloo whose data collectives take the time they would take on a slower network.

For people who cannot rate-limit a real network (that takes root). Tables label it `emulated`.

    emulated.register()
    dist.init_process_group("emulated", pg_options=emulated.Link(bandwidth_bytes_per_s=50e6, latency_s=100e-6))
    slower = emulated.create(bandwidth_bytes_per_s=25e6)      # another group over the same ranks

Needs: gloo, CPU tensors.
Does: lets gloo move the real bytes at once, and holds back the end of each data collective. The collectives of one
group form one in-order queue on each rank: one that is launched now ends at

    max(now, end of the one before) + latency + bytes / bandwidth

or when gloo has finished, if that is later. Bytes are those that this rank sends to other ranks or receives from them,
whichever is more. Delayed are all-to-all, all-gather and reduce-scatter of one tensor, all-reduce and broadcast (so
also `broadcast_object_list`, and from PyTorch 2.15 on object gathers). All else goes at gloo's own speed: the barrier,
point-to-point messages, gather, scatter and reduce, and all that takes a list of tensors (`all_to_all`, `all_gather`,
`reduce_scatter`; object gathers before 2.15).
Guarantees: values are gloo's; a launch does not wait for the network; `wait` returns neither before gloo has finished
nor before the deadline; waiting again is harmless.

Limits: deadlines are each rank's own. A rank that launches late holds up its peers until it launches, as gloo does, but
not for the whole transfer after that. Two groups do not share a link. A group of one rank has no network and no delay.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from annopipe.errors import PipelineError
from benchmarks.groups import gloo
from benchmarks.waiting import wait_until

__all__ = ["BACKEND", "LABEL", "DelayedWork", "EmulatedGroup", "Link", "bytes_on_link", "create", "register"]

BACKEND = "emulated"
LABEL = "emulated"


@dataclass(frozen=True)
class Link:
    """One rank's connection to the others, full duplex.

    >>> Link(bandwidth_bytes_per_s=50e6, latency_s=0.001).seconds(2_000_000)
    0.041
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what would divide by zero or never end."""
        if not self.bandwidth_bytes_per_s > 0:
            raise PipelineError(
                f"An emulated link needs a bandwidth above 0 bytes/s, not {self.bandwidth_bytes_per_s}."
            )
        if not 0 <= self.latency_s < math.inf:
            raise PipelineError(f"An emulated link needs a finite latency of 0 s or more, not {self.latency_s}.")

    def seconds(self, size_bytes: float) -> float:
        """How long one message of this size occupies the link."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


class DelayedWork(dist.Work):
    """A collective that has ended when gloo has finished it and its deadline has passed."""

    def __init__(self, inner: dist.Work, deadline_s: float) -> None:
        super().__init__()
        self._inner = inner
        self._deadline_s = deadline_s

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block the calling thread until the end; a timeout of zero means gloo's own."""
        finished = self._inner.wait(timeout)
        wait_until(self._deadline_s)
        return finished

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._inner.is_completed() and time.perf_counter() >= self._deadline_s


class EmulatedGroup(gloo.GlooGroup):
    """A gloo group behind a `Link`."""

    def __init__(self, info: gloo.GroupInfo, link: Link) -> None:
        super().__init__(info)
        self.link = link
        self._rank, self._size = info.group_rank, info.group_size  # asking C++ takes longer than the arithmetic
        self._free_s = 0.0  # when the link has carried everything launched so far, on time.perf_counter's clock

    def issue(self, collective: gloo.Collective) -> dist.Work:
        """Let gloo start, and queue the message on the link."""
        launched_s = time.perf_counter()  # before gloo starts, whose own work at launch is part of the transfer
        inner = collective.launch()
        if self._size == 1:
            return inner
        size_bytes = bytes_on_link(collective, self._rank, self._size)
        self._free_s = max(launched_s, self._free_s) + self.link.seconds(size_bytes)
        return DelayedWork(inner, self._free_s)


def bytes_on_link(collective: gloo.Collective, rank: int, size: int) -> float:
    """Count what one rank sends to others or receives from them, whichever is more, by the usual algorithms."""
    outputs, inputs = collective.outputs, collective.inputs
    if collective.kind == "all-to-all":
        sent = _bytes_of_others(inputs[0], collective.input_splits, rank, size)
        received = _bytes_of_others(outputs[0], collective.output_splits, rank, size)
        return max(sent, received)
    if collective.kind == "all-gather":
        return (size - 1) * _size_bytes(inputs)
    if collective.kind == "reduce-scatter":
        return (size - 1) * _size_bytes(outputs)
    if collective.kind == "all-reduce":  # a ring: a reduce-scatter, then an all-gather
        return 2 * (size - 1) * _size_bytes(inputs) / size
    return _size_bytes(inputs)  # a broadcast down a chain


def _bytes_of_others(tensor: torch.Tensor, splits: Sequence[int], rank: int, size: int) -> int:
    rows = tensor.shape[0]
    own_rows = splits[rank] if splits else rows // size
    return (rows - own_rows) * math.prod(tensor.shape[1:]) * tensor.element_size()


def _size_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _create(info: gloo.GroupInfo, options: object) -> EmulatedGroup:
    if options is None and dist.is_initialized() and isinstance(dist.group.WORLD, EmulatedGroup):
        options = dist.group.WORLD.link  # a group made without options (a DeviceMesh makes such) is on the same network
    if not isinstance(options, Link):
        raise PipelineError(
            "A process group with backend 'emulated' needs pg_options=emulated.Link(bandwidth_bytes_per_s=...), "
            f"not {options!r}."
        )
    return EmulatedGroup(info, options)


def register() -> None:
    """Make "emulated" a backend of torch.distributed; call it before naming the backend, as often as you like."""
    gloo.register(BACKEND, _create, devices=["cpu"])


def create(
    *, bandwidth_bytes_per_s: float, latency_s: float = 0.0, ranks: Sequence[int] | None = None
) -> dist.ProcessGroup:
    """Make an emulated group over `ranks` (None: all); as with `dist.new_group`, every rank must call it."""
    link = Link(bandwidth_bytes_per_s, latency_s)
    if not dist.is_initialized():
        raise PipelineError("emulated.create needs a default process group: call dist.init_process_group first.")
    register()
    members = None if ranks is None else list(ranks)
    group: dist.ProcessGroup = dist.new_group(members, backend=BACKEND, pg_options=link)
    return group
