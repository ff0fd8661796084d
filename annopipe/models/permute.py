"""Orders of rows by expert, and a gather of rows whose gradient is a gather too.

Each row that a token sends is a slot ``token * top_k + k``. Slots are sorted by expert for sending; what arrives is
sorted by sending rank, then by expert, and is sorted again by expert for computing. Nothing here reads a size on the
host, adds with atomics or leaves an order open, so results are the same in every run.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

__all__ = ["RowOrder", "by_expert", "gather_rows", "regroup"]


class RowOrder(NamedTuple):
    """A permutation of rows: ``sorted[i] = rows[source[i]]`` and ``rows[j] = sorted[target[j]]``.

    source, target: int64 [rows], inverse of each other.
    """

    source: Tensor
    target: Tensor


def by_expert(experts: Tensor, total_experts: int) -> tuple[RowOrder, Tensor]:
    """Sort slots by expert; slots of one expert keep their order.

    Args:
        experts: int64 [slots], the expert of each slot.
        total_experts: number of experts.

    Returns:
        the order, and int64 [experts]: how many slots each expert has.

    >>> order, counts = by_expert(torch.tensor([2, 0, 2, 1]), 4)
    >>> order.source.tolist(), order.target.tolist(), counts.tolist()
    ([1, 3, 0, 2], [2, 0, 3, 1], [1, 1, 2, 0])
    """
    source = experts.argsort(stable=True)
    target = torch.empty_like(source).scatter(0, source, torch.arange(source.shape[0], device=source.device))
    counts = torch.zeros(total_experts, dtype=torch.int64, device=experts.device)
    return RowOrder(source, target), counts.scatter_add(0, experts, torch.ones_like(experts))


def regroup(counts: Tensor, total: int) -> RowOrder:
    """The order that brings rows sorted by rank, then expert, into order by expert, then rank.

    Args:
        counts: int64 [ranks, local experts], rows from each rank for each expert.
        total: ``counts.sum()`` as a number, symbolic while tracing.

    >>> order = regroup(torch.tensor([[1, 2], [1, 0]]), 4)     # rows: rank 0: a B B, rank 1: a
    >>> order.source.tolist(), order.target.tolist()
    ([0, 3, 1, 2], [0, 2, 3, 1])
    """
    by_rank, by_expert = counts.flatten(), counts.t().flatten()
    starts = (by_rank.cumsum(0) - by_rank).view_as(counts)
    sorted_starts = (by_expert.cumsum(0) - by_expert).view(counts.shape[1], counts.shape[0])
    shift = sorted_starts.t() - starts
    row = torch.arange(total, device=counts.device)
    source = row - torch.repeat_interleave(shift.t().flatten(), by_expert, output_size=total)
    target = row + torch.repeat_interleave(shift.flatten(), by_rank, output_size=total)
    return RowOrder(source, target)


def gather_rows(x: Tensor, index: Tensor, back: Tensor, copies: int = 1) -> Tensor:
    """Rows ``x[index]``, where every row of ``x`` is taken exactly ``copies`` times.

    Args:
        x: [rows, width].
        index: int64 [rows * copies].
        back: int64 [rows * copies]: entries ``r * copies`` to ``(r + 1) * copies - 1`` are the places in ``index``
            where row ``r`` was taken. The gradient gathers by it and adds copies in this order, where the gradient of
            a plain ``index_select`` adds in any order on a GPU.

    Returns:
        [rows * copies, width].

    >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    >>> gather_rows(x, torch.tensor([1, 0, 0, 1]), torch.tensor([1, 2, 0, 3]), copies=2).flatten().tolist()
    [2.0, 1.0, 1.0, 2.0]
    """
    return cast(Tensor, _GatherRows.apply(x, index, back, copies))  # type: ignore[no-untyped-call]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.copies = copies
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        grad = grads[0].index_select(0, back)
        if ctx.copies > 1:
            grad = grad.unflatten(0, (-1, ctx.copies)).sum(1)
        return grad, None, None, None
