"""The token exchange of expert parallelism as one asynchronous operation with its sizes on tensors.

    received = wait(launch(rows, send_counts, recv_counts, total, group))     # or exchange(...), the same in one call

``annopipe::exchange`` launches an all-to-all of rows and returns at once; ``_c10d_functional::wait_tensor`` completes
it. The per-peer sizes are tensors that the operation reads itself, so a traced layer holds one symbolic number
(``total``) and one host read, where lists of sizes would make one of each per peer. The backward is the exchange with
the sizes swapped, again one launch and one wait.

Source: ``torch/distributed/_functional_collectives.py`` (``all_to_all_single``); this module is the only one of the
models that uses the operators of ``_c10d_functional``.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers the gradient of wait_tensor
from torch import Tensor

from annopipe.errors import GraphError
from annopipe.graphs.process_groups import find_group

__all__ = [
    "Group",
    "PeerSizes",
    "exchange",
    "exchange_counts",
    "group_name",
    "group_place",
    "launch",
    "peer_sizes",
    "wait",
]

Group = dist.ProcessGroup | str

_collectives = torch.ops._c10d_functional


class PeerSizes(NamedTuple):
    """Rows that go to and come from each rank of the group.

    send, recv: int64 [ranks], on the CPU.  total: rows that arrive, ``recv.sum()`` as a number.
    """

    send: Tensor
    recv: Tensor
    total: int


def launch(x: Tensor, send_counts: Tensor, recv_counts: Tensor, total: int, group: Group) -> Tensor:
    """Start sending the rows of ``x`` to the ranks of ``group``; returns the rows to receive, which ``wait`` completes.

    Args:
        x: [rows, ...], the rows for rank 0 first, then those for rank 1, and so on; ``rows == send_counts.sum()``.
        send_counts: int64 [ranks] on the CPU, rows for each rank; zeros are fine.
        recv_counts: int64 [ranks] on the CPU, rows from each rank.
        total: ``recv_counts.sum()`` as a number, symbolic while tracing.
        group: the process group, or its name.

    Returns:
        [total, ...], not to be read before ``wait``. Differentiable in ``x``.

    Raises:
        GraphError: sizes that do not fit the rows or the group, or that lie on another device than the CPU.
    """
    return cast(Tensor, torch.ops.annopipe.exchange(x, send_counts, recv_counts, total, group_name(group)))


def wait(x: Tensor) -> Tensor:
    """Complete what ``launch`` started and return the received rows, the same shape as ``x``."""
    return cast(Tensor, _collectives.wait_tensor(x))


def exchange(x: Tensor, send_counts: Tensor, recv_counts: Tensor, total: int, group: Group) -> Tensor:
    """``launch``, then ``wait``: [rows, ...] sent to [total, ...] received. Arguments and errors as for ``launch``.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> three = torch.tensor([3])
    >>> exchange(torch.arange(6.0).view(3, 2), three, three, 3, dist.group.WORLD).tolist()
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    >>> dist.destroy_process_group()
    """
    return wait(launch(x, send_counts, recv_counts, total, group))


def exchange_counts(counts: Tensor, group: Group) -> Tensor:
    """Tell every rank how many rows it will get for each of its experts.

    Args:
        counts: int64 [experts], rows that this rank has for each expert of the whole group, rank by rank.
        group: the process group, or its name.

    Returns:
        int64 [experts]: entry ``[peer * local + e]`` is the number of rows that ``peer`` has for local expert ``e``.

    Raises:
        GraphError: the number of experts is not a multiple of the group's size.
    """
    _, ranks = group_place(group)
    if counts.shape[0] % ranks:
        raise GraphError(f"exchange_counts: {counts.shape[0]} experts cannot be shared equally by {ranks} ranks")
    split = [counts.shape[0] // ranks] * ranks
    return wait(cast(Tensor, _collectives.all_to_all_single(counts, split, split, group_name(group))))


def peer_sizes(send: Tensor, recv: Tensor, ranks: int) -> PeerSizes:
    """The sizes of an exchange from counts by expert: one copy to the CPU and one host read, on any device.

    Args:
        send: int64 [experts], rows for each expert of the group.  recv: int64 [experts], from ``exchange_counts``.
        ranks: size of the group.

    >>> sizes = peer_sizes(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 5, 0]), ranks=2)
    >>> sizes.send.tolist(), sizes.recv.tolist(), sizes.total
    ([3, 7], [3, 5], 8)
    """
    both = torch.stack((send.view(ranks, -1).sum(1), recv.view(ranks, -1).sum(1))).to("cpu")
    sent, received = both.unbind(0)
    total = cast(int, received.sum().item())
    torch._check(total >= 0)
    return PeerSizes(sent, received, total)


def group_name(group: Group) -> str:
    """The name under which PyTorch's functional collectives find the group.

    Raises:
        GraphError: not a group; ``new_group`` returns a number on ranks that are not members.
    """
    if isinstance(group, str):
        return group
    if not isinstance(group, dist.ProcessGroup):
        raise GraphError(f"{group!r} is not a process group: is this rank a member of the group that it passes?")
    return str(group.group_name)


def group_place(group: Group) -> tuple[int, int]:
    """This process's rank in the group, and the group's size.

    Raises:
        GraphError: there is no process group of that name.
    """
    found = find_group(group) if isinstance(group, str) else group
    if found is None:
        raise GraphError(
            f"expert parallelism over group {group!r} needs torch.distributed: call init_process_group first, "
            "or pass group=None to keep all experts on this rank"
        )
    return found.rank(), found.size()


torch.library.define(
    "annopipe::exchange",
    "(Tensor x, Tensor send_counts, Tensor recv_counts, SymInt total, str group_name) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _launch(x: Tensor, send_counts: Tensor, recv_counts: Tensor, total: int, group_name: str) -> Tensor:
    for sizes in (send_counts, recv_counts):
        if sizes.device.type != "cpu":
            raise GraphError(f"exchange: the sizes are on {sizes.device}; move both to the cpu in one copy")
    send, recv = send_counts.tolist(), recv_counts.tolist()
    _, ranks = group_place(group_name)
    if len(send) != ranks or len(recv) != ranks:
        raise GraphError(f"exchange: {len(send)} send and {len(recv)} receive sizes for a group of {ranks} ranks")
    if sum(send) != x.shape[0] or sum(recv) != total:
        raise GraphError(
            f"exchange: send sizes {send} must add to the {x.shape[0]} rows of x, receive sizes {recv} to total {total}"
        )
    return cast(Tensor, _collectives.all_to_all_single(x.contiguous(), recv, send, group_name))


def _fake_launch(x: Tensor, _send_counts: Tensor, _recv_counts: Tensor, total: int, _group_name: str) -> Tensor:
    return x.new_empty((total, *x.shape[1:]))


def _save_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch.library gives all)
    x, send_counts, recv_counts, _, ctx.group_name = inputs
    ctx.save_for_backward(send_counts, recv_counts)
    ctx.rows = x.shape[0]


def _launch_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    send_counts, recv_counts = ctx.saved_tensors
    returned = exchange(gradient.contiguous(), recv_counts, send_counts, ctx.rows, ctx.group_name)
    return returned, None, None, None, None


torch.library.impl("annopipe::exchange", "default", _launch)
torch.library.register_fake("annopipe::exchange", _fake_launch)
torch.library.register_autograd("annopipe::exchange", _launch_backward, setup_context=_save_sizes)
