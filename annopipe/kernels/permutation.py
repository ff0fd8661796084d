"""Rows in the order of their experts and back: gathers with weights, sums and gradients in one kernel each.

A token visits ``top_k`` experts, so it has slots ``token * top_k + k``. Sorted by expert, ``source[i]`` is the slot of
row i, and ``target[slot]`` its row; one is the inverse of the other.

    permute         rows[i]   = weights[source[i]] * x[source[i] // top_k]
    unpermute       x[t]      = sum over k of weights[t, k] * rows[target[t * top_k + k]]
    row_products    out[t, k] = x[t] . rows[target[t * top_k + k]]

Each is a derivative of the others: the gradient of ``permute`` is ``unpermute`` and ``row_products``, and so on. So all
gradients, of any order, are gathers in a fixed order; nothing is scattered. Weights that are left out are 1.
On the CPU these are PyTorch's operations, on a GPU Triton kernels that read every row once and write no slots.
"""

from typing import Any, cast

import torch
from torch import Tensor

from annopipe.kernels import row_operations
from annopipe.kernels.registration import register

__all__ = ["permute", "row_products", "unpermute"]


def permute(x: Tensor, source: Tensor, target: Tensor, top_k: int = 1, weights: Tensor | None = None) -> Tensor:
    """Copy every token to the rows of its experts.

    Args:
        x: [tokens, width].
        source, target: int64 (or int32) [tokens * top_k], permutations of the slots, inverse of each other.
        top_k: rows of each token.
        weights: a factor for each slot, [tokens, top_k]; 1 if left out.

    Returns:
        [tokens * top_k, width]. Differentiable in ``x`` and ``weights``.

    Raises:
        GraphError: shapes that do not fit.

    >>> x, source, target = torch.tensor([[1.0], [2.0]]), torch.tensor([1, 2, 0, 3]), torch.tensor([2, 0, 1, 3])
    >>> permute(x, source, target, top_k=2).flatten().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    return cast(Tensor, torch.ops.annopipe.permute(x, weights, source, target, top_k))


def unpermute(rows: Tensor, source: Tensor, target: Tensor, top_k: int = 1, weights: Tensor | None = None) -> Tensor:
    """Add up the rows of every token, in the order of its slots; sums are taken in float32 at least.

    Args:
        rows: [tokens * top_k, width], in the order of ``permute``.
        source, target, top_k, weights: as for ``permute``.

    Returns:
        [tokens, width]. Differentiable in ``rows`` and ``weights``.

    Raises:
        GraphError: shapes that do not fit.

    >>> rows, weights = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[1.0, 10.0], [1.0, 10.0]])
    >>> source, target = torch.tensor([1, 2, 0, 3]), torch.tensor([2, 0, 1, 3])
    >>> unpermute(rows, source, target, top_k=2, weights=weights).flatten().tolist()
    [13.0, 42.0]
    """
    return cast(Tensor, torch.ops.annopipe.unpermute(rows, weights, source, target, top_k))


def row_products(
    x: Tensor, rows: Tensor, source: Tensor, target: Tensor, top_k: int = 1, dtype: torch.dtype | None = None
) -> Tensor:
    """Multiply every token with each of its rows: the gradient of the weights.

    Args:
        x: [tokens, width].
        rows: [tokens * top_k, width], of the same type.
        source, target, top_k: as for ``permute``.
        dtype: of the result; that of ``x`` if left out.

    Returns:
        [tokens, top_k]. Differentiable in ``x`` and ``rows``.

    Raises:
        GraphError: shapes that do not fit.
    """
    return cast(Tensor, torch.ops.annopipe.row_products(x, rows, source, target, top_k, dtype or x.dtype))


def _fake_permute(x: Tensor, _weights: Tensor | None, source: Tensor, _target: Tensor, _top_k: int) -> Tensor:
    return x.new_empty((source.shape[0], x.shape[1]))


def _fake_unpermute(rows: Tensor, _weights: Tensor | None, _source: Tensor, target: Tensor, top_k: int) -> Tensor:
    return rows.new_empty((target.shape[0] // top_k, rows.shape[1]))


def _fake_products(x: Tensor, _rows: Tensor, _source: Tensor, target: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty((target.shape[0] // top_k, top_k), dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch.library gives all three)
    ctx.save_for_backward(*(value for value in inputs if value is None or isinstance(value, Tensor)))
    ctx.top_k = inputs[4]


def _permute_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weights, source, target = ctx.saved_tensors
    for_x = unpermute(grad, source, target, ctx.top_k, weights) if ctx.needs_input_grad[0] else None
    return for_x, _for_weights(ctx, x, grad), None, None, None


def _unpermute_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, weights, source, target = ctx.saved_tensors
    for_rows = permute(grad, source, target, ctx.top_k, weights) if ctx.needs_input_grad[0] else None
    return for_rows, _for_weights(ctx, grad, rows), None, None, None


def _for_weights(ctx: Any, x: Tensor, rows: Tensor) -> Tensor | None:
    """The gradient of the weights from tokens and rows, one of which is a gradient."""
    _, weights, source, target = ctx.saved_tensors
    if not ctx.needs_input_grad[1]:
        return None
    return row_products(x, rows, source, target, ctx.top_k, weights.dtype).view_as(weights)


def _products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, rows, source, target = ctx.saved_tensors
    for_x = unpermute(rows, source, target, ctx.top_k, grad) if ctx.needs_input_grad[0] else None
    for_rows = permute(x, source, target, ctx.top_k, grad) if ctx.needs_input_grad[1] else None
    return for_x, for_rows, None, None, None, None


_ROWS = "Tensor? weights, Tensor source, Tensor target, int top_k"
register(f"permute(Tensor x, {_ROWS}) -> Tensor", row_operations.permute, _fake_permute, _permute_backward, _save)
register(
    f"unpermute(Tensor rows, {_ROWS}) -> Tensor", row_operations.unpermute, _fake_unpermute, _unpermute_backward, _save
)
register(
    "row_products(Tensor x, Tensor rows, Tensor source, Tensor target, int top_k, ScalarType dtype) -> Tensor",
    *(row_operations.row_products, _fake_products, _products_backward, _save),
)
