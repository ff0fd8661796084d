"""A process group written in Python that is gloo until a subclass takes over its data collectives.

What PyTorch 2.13 does with such a class, found by experiment, and why this file looks the way it does:

- Functional collectives call the group's C++ virtual method, and that looks for a Python method: `alltoall_base`,
  `allgather_into_tensor_coalesced`, `reduce_scatter_tensor_coalesced`, `allreduce`, `allreduce_coalesced`,
  `broadcast`. 2.13 tries its new names for the first three before these. `_allgather_base` and
  `_reduce_scatter_base` are not virtual for Python: `dist.*` calls the methods below, but
  `_c10d_functional.all_gather_into_tensor_out` goes to gloo.
- A method returns a Python `Work`. C++ keeps that object alive until `wait_tensor` has called its `wait(timedelta)`, on
  the thread that called `wait_tensor`, with the GIL (gloo's own wait gives it up). Python exceptions pass through.
- A subclass can only be constructed from (rank, size): given a store, pybind11 refuses. A backend registered on it
  serves every method without a Python override, and tells `dist` on which device object collectives work.
- An override must not call its own base method, which would look for the override again: it calls `self.gloo`.
- A virtual method without an override hangs now and then: C++ then enqueues in gloo with the GIL held, while gloo's
  thread, with its queue locked, waits for the GIL to free the tensors of the work before. `self.gloo` enqueues without
  the GIL. So every virtual method is overridden, also those that only pass on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from annopipe.errors import PipelineError

__all__ = ["Collective", "GlooGroup", "GroupInfo", "register"]


class GroupInfo(Protocol):
    """What torch.distributed tells a backend about the group that it is asked to create."""

    store: Any  # a c10d store, which the stubs do not export
    group_rank: int
    group_size: int
    timeout: timedelta


@dataclass(frozen=True)
class Collective:
    """One data collective that a group was asked for.

    Outputs and inputs are paired, and are the same tensors for all-reduce and broadcast, which work in place. Splits
    count rows, one number for each rank; empty means equal parts. Only an all-to-all has them.
    """

    kind: Literal["all-to-all", "all-gather", "reduce-scatter", "all-reduce", "broadcast"]
    outputs: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    launch: Callable[[], dist.Work]  # gloo's
    output_splits: Sequence[int] = ()
    input_splits: Sequence[int] = ()


class GlooGroup(dist.ProcessGroup):
    """A group over gloo; a subclass overrides `issue` to do something else with data collectives.

    Barrier, point-to-point messages, gather, scatter, reduce, and collectives of lists of tensors (object gathers are
    such before PyTorch 2.15) are gloo's in any case.
    """

    def __init__(self, info: GroupInfo) -> None:
        super().__init__(info.group_rank, info.group_size)  # type: ignore[call-arg]  # see above, third point
        if not dist.is_gloo_available():
            raise PipelineError(
                "This PyTorch has no gloo, which emulated and pinned groups stand on: install one with it."
            )
        backend = dist.ProcessGroupGloo(info.store, info.group_rank, info.group_size, info.timeout)
        self._store = info.store
        self.gloo = dist.ProcessGroup(info.store, info.group_rank, info.group_size)
        for group in (self.gloo, self):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)

    def get_group_store(self) -> Any:
        """Where the group's ranks met; the base class knows it only of groups that are made in C++."""
        return self._store

    def issue(self, collective: Collective) -> dist.Work:
        """Start a data collective without waiting for it."""
        return collective.launch()

    # The methods that PyTorch calls, all arguments by position; options (operation, root, timeout) only pass through.

    def alltoall_base(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        *options: Any,
    ) -> dist.Work:
        """Send rows from every rank to every other."""
        launch = partial(self.gloo.alltoall_base, target, source, output_splits, input_splits, *options)
        return self.issue(Collective("all-to-all", [target], [source], launch, output_splits, input_splits))

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any
    ) -> dist.Work:
        """Collect each input from every rank."""
        launch = partial(self.gloo.allgather_into_tensor_coalesced, outputs, inputs, *options)
        return self.issue(Collective("all-gather", outputs, inputs, launch))

    def _allgather_base(self, target: torch.Tensor, source: torch.Tensor, *options: Any) -> dist.Work:
        launch = partial(self.gloo._allgather_base, target, source, *options)
        return self.issue(Collective("all-gather", [target], [source], launch))

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any
    ) -> dist.Work:
        """Reduce each input over the ranks and keep this rank's part."""
        launch = partial(self.gloo.reduce_scatter_tensor_coalesced, outputs, inputs, *options)
        return self.issue(Collective("reduce-scatter", outputs, inputs, launch))

    def _reduce_scatter_base(self, target: torch.Tensor, source: torch.Tensor, *options: Any) -> dist.Work:
        launch = partial(self.gloo._reduce_scatter_base, target, source, *options)
        return self.issue(Collective("reduce-scatter", [target], [source], launch))

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """Reduce the tensors over the ranks, in place."""
        return self.issue(Collective("all-reduce", tensors, tensors, partial(self.gloo.allreduce, tensors, *options)))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:
        """Reduce several tensors over the ranks at once, in place."""
        launch = partial(self.gloo.allreduce_coalesced, tensors, *options)
        return self.issue(Collective("all-reduce", tensors, tensors, launch))

    def broadcast(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """Send the tensors from one rank to all, in place."""
        return self.issue(Collective("broadcast", tensors, tensors, partial(self.gloo.broadcast, tensors, *options)))

    # What only passes on.

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """Collect each input from every rank, as lists of tensors; object gathers come here."""
        return self.gloo.allgather(outputs, inputs, *options)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *options: Any) -> dist.Work:  # type: ignore[override]
        """Reduce lists of tensors and keep this rank's."""
        return self.gloo.reduce_scatter(outputs, inputs, *options)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank is here."""
        return self.gloo.barrier(*([] if opts is None else [opts]))

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        """Send to one rank."""
        return self.gloo.send(tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        """Receive from one rank."""
        return self.gloo.recv(tensors, peer, tag)

    # From PyTorch 2.14 on C++ looks for these, too.

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any) -> dist.Work:
        """Send a tensor from every rank to every other."""
        return self.gloo.alltoall(outputs, inputs, *options)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """Collect each input on one rank."""
        return self.gloo.gather(outputs, inputs, *options)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *options: Any) -> dist.Work:  # type: ignore[override]
        """Send a tensor from one rank to each."""
        return self.gloo.scatter(outputs, inputs, *options)

    def reduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """Reduce the tensors over the ranks, on one rank."""
        return self.gloo.reduce(tensors, *options)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        """Receive from any rank; `dist.recv` comes here, and asks gloo's own work which rank it was."""
        return self.gloo.recv_anysource(tensors, tag)

    recvAnysource = recv_anysource  # noqa: N815 - the name that C++ looks for

    def start_coalescing(self, device: torch.device) -> None:
        """Begin to gather calls; gloo refuses it."""
        self.gloo._start_coalescing(device)

    def end_coalescing(self, device: torch.device) -> dist.Work:
        """Issue the calls that were gathered."""
        return self.gloo._end_coalescing(device)

    def reconfigure(self, options: Any) -> dist.Work:  # from 2.15 on
        """Go on with other ranks; gloo refuses it, where PyTorch has it."""
        found: Any = self.gloo
        return found.reconfigure(options)

    # The same methods under the names that PyTorch 2.13 gave them.
    all_to_all_single = alltoall_base  # type: ignore[assignment]
    all_gather_single = _allgather_base  # type: ignore[assignment]
    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]


def register(name: str, create: Callable[[GroupInfo, object], GlooGroup], devices: list[str]) -> None:
    """Make `name` a backend for `dist.init_process_group` and `dist.new_group`; calling it again changes nothing.

    `create` receives what is known about the group and the `pg_options` that the caller gave, or None.
    """
    dist.Backend.register_backend(name, create, extended_api=True, devices=devices)
