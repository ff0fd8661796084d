"""Triton kernels that permute rows, add up weighted rows, and multiply rows with each other.

Every kernel reads each index once and each row as a whole; nothing is added with atomics. What an element is added up
from, and in which order, depends on ``top_k`` alone and never on the tile (``annopipe/kernels/tiles.py``).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from annopipe.kernels.launching import by_row, chosen
from annopipe.kernels.tiles import RowTile, products_width, row_tiles

__all__ = ["permute", "permute_kernel", "row_products", "row_products_kernel", "unpermute", "unpermute_kernel"]


@triton.jit(do_not_specialize=["rows"])
def permute_kernel(
    x,
    weights,
    source,
    out,
    rows,
    width,
    x_stride,
    TOP_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """``out[i] = weights[source[i]] * x[source[i] // TOP_K]``, a block of rows and columns per program."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    slot = tl.load(source + row, mask=row < rows, other=0).to(tl.int64)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    value = tl.load(x + (slot // TOP_K)[:, None] * x_stride + column[None, :], mask=mask, other=0.0)
    if WEIGHTED:
        weight = tl.load(weights + slot, mask=row < rows, other=0.0).to(tl.float32)
        value = value.to(tl.float32) * weight[:, None]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + place, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def unpermute_kernel(
    rows,
    weights,
    target,
    out,
    tokens,
    width,
    rows_stride,
    TOP_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """``out[t]`` is the sum over k of ``weights[t, k] * rows[target[t, k]]``, added in float32 in the order of k."""
    token = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    mask = (token < tokens)[:, None] & (column < width)[None, :]
    total = tl.zeros([BLOCK_ROWS, BLOCK_WIDTH], dtype=tl.float32)
    for k in range(TOP_K):
        slot = token.to(tl.int64) * TOP_K + k
        row = tl.load(target + slot, mask=token < tokens, other=0).to(tl.int64)
        value = tl.load(rows + row[:, None] * rows_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
        if WEIGHTED:
            value *= tl.load(weights + slot, mask=token < tokens, other=0.0).to(tl.float32)[:, None]
        total += value
    place = token.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def row_products_kernel(
    x,
    rows,
    target,
    out,
    width,
    x_stride,
    rows_stride,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """``out[t, k]`` is the product of ``x[t]`` and ``rows[target[t, k]]``; one program per token."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    row = tl.load(target + token * TOP_K + k, mask=k < TOP_K, other=0).to(tl.int64)
    total = tl.zeros([BLOCK_K, BLOCK_WIDTH], dtype=tl.float32)
    for start in range(0, width, BLOCK_WIDTH):
        column = start + tl.arange(0, BLOCK_WIDTH)
        value = tl.load(x + token * x_stride + column, mask=column < width, other=0.0).to(tl.float32)
        mask = (k < TOP_K)[:, None] & (column < width)[None, :]
        other = tl.load(rows + row[:, None] * rows_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
        total += value[None, :] * other
    tl.store(out + token * TOP_K + k, tl.sum(total, axis=1).to(out.dtype.element_ty), mask=k < TOP_K)


def permute(x: Tensor, weights: Tensor | None, source: Tensor, top_k: int, tile: RowTile | None = None) -> Tensor:
    """Tokens x [tokens, width] to [tokens * top_k, width]; in a tile of its own choice unless one is given."""
    x, source, weights = by_row(x), source.contiguous(), None if weights is None else weights.contiguous()
    rows, width = source.shape[0], x.shape[1]
    out = x.new_empty((rows, width))

    def launch(tile: RowTile) -> None:
        permute_kernel[_grid(rows, width, tile)](
            x, weights, source, out, rows, width, x.stride(0), **_options(top_k, weights, tile)
        )

    if out.numel():
        kind = "permute", x.dtype, width, top_k, weights is None
        with torch.cuda.device_of(x):
            launch(tile or chosen(kind, rows, row_tiles(), launch, x.device))
    return out


def unpermute(rows: Tensor, weights: Tensor | None, target: Tensor, top_k: int, tile: RowTile | None = None) -> Tensor:
    """Rows [tokens * top_k, width] to [tokens, width]; in a tile of its own choice unless one is given."""
    rows, target, weights = by_row(rows), target.contiguous(), None if weights is None else weights.contiguous()
    tokens, width = target.shape[0] // top_k, rows.shape[1]
    out = rows.new_empty((tokens, width))

    def launch(tile: RowTile) -> None:
        unpermute_kernel[_grid(tokens, width, tile)](
            rows, weights, target, out, tokens, width, rows.stride(0), **_options(top_k, weights, tile)
        )

    if out.numel():
        kind = "unpermute", rows.dtype, width, top_k, weights is None
        with torch.cuda.device_of(rows):
            launch(tile or chosen(kind, tokens, row_tiles(), launch, rows.device))
    return out


def row_products(x: Tensor, rows: Tensor, target: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    """Tokens x [tokens, width] and rows [tokens * top_k, width] to [tokens, top_k]; always in the same tile."""
    x, rows = by_row(x), by_row(rows)
    tokens, width = x.shape
    out = x.new_empty((tokens, top_k), dtype=dtype)
    block = triton.next_power_of_2(top_k)
    if out.numel():
        with torch.cuda.device_of(x):
            row_products_kernel[(tokens,)](
                *(x, rows, target.contiguous(), out, width, x.stride(0), rows.stride(0)),
                TOP_K=top_k,
                BLOCK_K=block,
                BLOCK_WIDTH=products_width(block),
                num_warps=4,
            )
    return out


def _grid(rows: int, width: int, tile: RowTile) -> tuple[int, int]:
    return triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.width)


def _options(top_k: int, weights: Tensor | None, tile: RowTile) -> dict[str, int | bool]:
    return {
        "TOP_K": top_k,
        "WEIGHTED": weights is not None,
        "BLOCK_ROWS": tile.rows,
        "BLOCK_WIDTH": tile.width,
        "num_warps": tile.warps,
    }
