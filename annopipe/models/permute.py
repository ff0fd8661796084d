"""Orders of rows by expert, and rows brought into these orders and back; gradients are gathers, too.

Each row that a token sends is a slot ``token * top_k + k``. Slots are sorted by expert for sending; what arrives is
sorted by sending rank, then by expert, and is sorted again by expert for computing. Nothing here reads a size on the
host, adds with atomics or leaves an order open, so results are the same in every run.

On a GPU ``annopipe.kernels`` permutes rows, one kernel each way; elsewhere, and where there is no kernel, PyTorch's
operations do, which a compiler can fuse with what is around them.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from annopipe import kernels

__all__ = ["RowOrder", "by_expert", "gather_rows", "permute", "regroup", "unpermute"]


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


def permute(x: Tensor, order: RowOrder, top_k: int = 1) -> Tensor:
    """Rows of tokens in an order of their slots.

    Args:
        x: [tokens, width].
        order: of ``tokens * top_k`` slots.
        top_k: slots of a token.

    Returns:
        [tokens * top_k, width].

    >>> order, _ = by_expert(torch.tensor([1, 0, 0, 1]), 2)      # two tokens, each visits both experts
    >>> permute(torch.tensor([[1.0], [2.0]]), order, top_k=2).flatten().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    if kernels.has_kernels(x):
        return kernels.permute(x, order.source, order.target, top_k)
    index = order.source if top_k == 1 else order.source // top_k
    return gather_rows(x, index, order.target, copies=top_k)


def unpermute(rows: Tensor, order: RowOrder, weights: Tensor | None = None) -> Tensor:
    """Rows back in the order of tokens, those of a token weighted and added up.

    Args:
        rows: [slots, width], in ``order``.
        weights: [tokens, top_k]; None: a token has one slot, and its row is what it gets.

    Returns:
        [tokens, width].

    >>> order, _ = by_expert(torch.tensor([1, 0, 0, 1]), 2)
    >>> rows = torch.tensor([[1.0], [2.0], [3.0], [4.0]])        # of tokens 0, 1, 0, 1
    >>> unpermute(rows, order, torch.tensor([[1.0, 10.0], [1.0, 10.0]])).flatten().tolist()
    [13.0, 42.0]
    """
    if kernels.has_kernels(rows, weights):
        top_k = 1 if weights is None else weights.shape[1]
        return kernels.unpermute(rows, order.source, order.target, top_k, weights)
    slots = gather_rows(rows, order.target, order.source)
    if weights is None:
        return slots
    slots = slots.view(-1, weights.shape[1], rows.shape[1])
    return torch.bmm(weights.to(rows.dtype).unsqueeze(1), slots).squeeze(1)


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
