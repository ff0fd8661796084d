"""What the row operators run: shapes are checked, then our kernels compute where there are some, else PyTorch."""

from typing import cast

import torch
from torch import Tensor

from annopipe.errors import GraphError
from annopipe.kernels import torch_rows
from annopipe.kernels.implementation import has_kernels, row_kernels
from annopipe.kernels.tiles import KERNEL_DTYPES

__all__ = ["permute", "row_products", "unpermute"]


def permute(x: Tensor, weights: Tensor | None, source: Tensor, target: Tensor, top_k: int) -> Tensor:
    """Tokens x [tokens, width] to [tokens * top_k, width]."""
    _check("permute", x.shape[0] * top_k, (x,), weights, source, target, top_k)
    if has_kernels(x, weights):
        return cast(Tensor, row_kernels().permute(x, weights, source, top_k))
    return torch_rows.permute(x, weights, source, top_k)


def unpermute(rows: Tensor, weights: Tensor | None, source: Tensor, target: Tensor, top_k: int) -> Tensor:
    """Rows [tokens * top_k, width] to [tokens, width]."""
    _check("unpermute", rows.shape[0], (rows,), weights, source, target, top_k)
    if has_kernels(rows, weights):
        return cast(Tensor, row_kernels().unpermute(rows, weights, target, top_k))
    return torch_rows.unpermute(rows, weights, target, top_k)


def row_products(x: Tensor, rows: Tensor, source: Tensor, target: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    """Tokens x [tokens, width] and rows [tokens * top_k, width] to [tokens, top_k]."""
    _check("row_products", rows.shape[0], (x, rows), None, source, target, top_k)
    if x.shape[0] * top_k != rows.shape[0] or x.dtype != rows.dtype:
        raise GraphError(
            f"row_products: x {tuple(x.shape)} of {x.dtype} does not fit rows {tuple(rows.shape)} of {rows.dtype}: "
            f"there are top_k = {top_k} rows of the same type for each row of x"
        )
    if has_kernels(x, rows) and dtype in KERNEL_DTYPES:
        return cast(Tensor, row_kernels().row_products(x, rows, target, top_k, dtype))
    return torch_rows.row_products(x, rows, target, top_k, dtype)


def _check(
    name: str,
    slots: int,
    matrices: tuple[Tensor, ...],
    weights: Tensor | None,
    source: Tensor,
    target: Tensor,
    top_k: int,
) -> None:
    """Refuse operands whose shapes do not fit; nothing is read of what they hold."""
    widths = {matrix.shape[-1] if matrix.dim() == 2 else -1 for matrix in matrices}
    fits = -1 not in widths and len(widths) == 1 and top_k >= 1 and slots % top_k == 0
    if not fits or tuple(source.shape) != (slots,) or tuple(target.shape) != (slots,):
        raise GraphError(
            f"{name}: {', '.join(str(tuple(m.shape)) for m in matrices)}, source {tuple(source.shape)} and target "
            f"{tuple(target.shape)} do not fit top_k = {top_k}: rows are [rows, width], and source and target have "
            "one number for each slot of a token"
        )
    if weights is not None and tuple(weights.shape) not in ((slots // top_k, top_k), (slots,)):
        raise GraphError(f"{name}: weights {tuple(weights.shape)} do not fit {slots} slots: give [tokens, top_k]")
