"""Triton kernels for matrix products of rows grouped by expert, with the sizes of the groups on the device.

Both are persistent: a fixed number of programs, at most one for each multiprocessor that they may occupy, go through
the tiles of all experts. Which expert a tile belongs to is found from the counts, in registers; the host reads nothing.

    product        out[rows of e] = x[rows of e] @ weight[e]            a tile is rows of one expert, and columns
    weight_grad    out[e]         = x[rows of e].T @ grad[rows of e]    a tile is a block of one expert's matrix

An element is added up in float32 in blocks of ``BLOCK_IN`` (``BLOCK_ROWS``) values, one after the other: the order does
not depend on the tile, nor on how many programs there are.

What changes from call to call, the number of rows, is no part of what the compiler knows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from annopipe.kernels.launching import aligned, by_row, capability, chosen, precision, programs
from annopipe.kernels.tiles import GROUP, MatrixTile, matrix_tiles

__all__ = ["product", "product_kernel", "weight_grad", "weight_grad_kernel"]


@triton.jit
def _tile_place(tile, height, width, GROUP: tl.constexpr):
    """Row and column of a tile among height x width: down ``GROUP`` rows first, so that blocks are reused."""
    first = tile // (GROUP * width) * GROUP
    rows = tl.minimum(height - first, GROUP)
    inside = tile % (GROUP * width)
    return first + inside % rows, inside // rows


@triton.jit(do_not_specialize=["rows", "experts"])
def product_kernel(
    x,
    weight,
    counts,
    out,
    rows,
    experts,
    width_in,
    width_out,
    x_stride,
    weight_stride,
    weight_stride_in,
    weight_stride_out,
    EXPERTS: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Rows of each expert times its matrix; WHOLE: width_in is a multiple of BLOCK_IN, EXPERTS a power of two."""
    number = tl.arange(0, EXPERTS)
    sizes = tl.load(counts + number, mask=number < experts, other=0).to(tl.int32)
    blocks = (sizes + BLOCK_ROWS - 1) // BLOCK_ROWS
    columns = tl.cdiv(width_out, BLOCK_OUT)
    ends = tl.cumsum(blocks, 0) * columns
    for tile in range(tl.program_id(0), tl.sum(blocks, 0) * columns, tl.num_programs(0)):
        expert = tl.sum((ends <= tile).to(tl.int32), 0)
        size = tl.sum(tl.where(number == expert, sizes, 0), 0)
        first_row = tl.sum(tl.where(number < expert, sizes, 0), 0)
        first_tile = tl.sum(tl.where(number < expert, blocks, 0), 0) * columns
        row_block, column_block = _tile_place(tile - first_tile, tl.cdiv(size, BLOCK_ROWS), columns, GROUP)
        row = row_block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        column = column_block * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        inner = tl.arange(0, BLOCK_IN)
        row_mask, column_mask = row < tl.minimum(size, rows - first_row), column < width_out
        place = (first_row + row).to(tl.int64)
        left = x + place[:, None] * x_stride + inner[None, :]
        right = weight + expert.to(tl.int64) * weight_stride
        right += inner[:, None].to(tl.int64) * weight_stride_in + column[None, :].to(tl.int64) * weight_stride_out
        total = tl.zeros([BLOCK_ROWS, BLOCK_OUT], dtype=tl.float32)
        for start in range(0, width_in, BLOCK_IN):
            if WHOLE:
                a = tl.load(left, mask=row_mask[:, None], other=0.0)
                b = tl.load(right, mask=column_mask[None, :], other=0.0)
            else:
                inner_mask = start + inner < width_in
                a = tl.load(left, mask=row_mask[:, None] & inner_mask[None, :], other=0.0)
                b = tl.load(right, mask=inner_mask[:, None] & column_mask[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
            left += BLOCK_IN
            right += BLOCK_IN * weight_stride_in
        stored = out + place[:, None] * width_out + column[None, :]
        tl.store(stored, total.to(out.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


@triton.jit(do_not_specialize=["rows", "experts"])
def weight_grad_kernel(
    x,
    grad,
    counts,
    out,
    rows,
    experts,
    width_in,
    width_out,
    x_stride,
    grad_stride,
    EXPERTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The transposed rows of each expert times their gradients; an expert without rows gets zeros."""
    number = tl.arange(0, EXPERTS)
    sizes = tl.load(counts + number, mask=number < experts, other=0).to(tl.int32)
    height, columns = tl.cdiv(width_in, BLOCK_IN), tl.cdiv(width_out, BLOCK_OUT)
    for tile in range(tl.program_id(0), experts * height * columns, tl.num_programs(0)):
        expert = tile // (height * columns)
        size = tl.sum(tl.where(number == expert, sizes, 0), 0)
        first_row = tl.sum(tl.where(number < expert, sizes, 0), 0)
        size = tl.minimum(size, rows - first_row)
        in_block, out_block = _tile_place(tile % (height * columns), height, columns, GROUP)
        inner = in_block * BLOCK_IN + tl.arange(0, BLOCK_IN)
        column = out_block * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        row = tl.arange(0, BLOCK_ROWS)
        inner_mask, column_mask = inner < width_in, column < width_out
        place = (first_row + row).to(tl.int64)
        left = x + place[None, :] * x_stride + inner[:, None]
        right = grad + place[:, None] * grad_stride + column[None, :]
        total = tl.zeros([BLOCK_IN, BLOCK_OUT], dtype=tl.float32)
        for start in range(0, size, BLOCK_ROWS):
            row_mask = start + row < size
            a = tl.load(left, mask=inner_mask[:, None] & row_mask[None, :], other=0.0)
            b = tl.load(right, mask=row_mask[:, None] & column_mask[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
            left += BLOCK_ROWS * x_stride
            right += BLOCK_ROWS * grad_stride
        stored = out + (expert * width_in + inner).to(tl.int64)[:, None] * width_out + column[None, :]
        tl.store(stored, total.to(out.dtype.element_ty), mask=inner_mask[:, None] & column_mask[None, :])


def product(x: Tensor, weight: Tensor, counts: Tensor, sms: int, tile: MatrixTile | None = None) -> Tensor:
    """Rows x [rows, in], weight [experts, in, out] of any strides, to [rows, out].

    sms: at most so many programs, hence multiprocessors; 0: one for each.  tile: chosen here unless given.
    """
    x, counts = by_row(x), counts.contiguous()
    rows, (experts, width_in, width_out) = x.shape[0], weight.shape
    out = x.new_empty((rows, width_out))
    how = precision(x.dtype)
    fits = aligned((x, weight, out), (width_in, width_out, x.stride(0), *weight.stride()))

    def launch(tile: MatrixTile) -> None:
        number = (triton.cdiv(rows, tile.height) + experts) * triton.cdiv(width_out, tile.width)
        product_kernel[(min(programs(x.device, sms), number),)](
            *(x, weight, counts, out, rows, experts, width_in, width_out, x.stride(0), *weight.stride()),
            WHOLE=fits and width_in % tile.depth == 0,
            BLOCK_ROWS=tile.height,
            BLOCK_IN=tile.depth,
            BLOCK_OUT=tile.width,
            **_options(experts, how, tile),
        )

    if out.numel():
        tiles = matrix_tiles(x.dtype, how, capability(x.device), aligned=fits, whole=fits and width_in % 64 == 0)
        kind = "grouped_mm", x.dtype, how, *weight.shape, weight.stride(2) == 1, fits, sms
        with torch.cuda.device_of(x):
            launch(tile or chosen(kind, rows, tiles, launch, x.device))
    return out


def weight_grad(x: Tensor, grad: Tensor, counts: Tensor, sms: int, tile: MatrixTile | None = None) -> Tensor:
    """Rows x [rows, in] and grad [rows, out] to [experts, in, out]; other arguments as for ``product``."""
    x, grad, counts = by_row(x), by_row(grad), counts.contiguous()
    experts, width_in, width_out = counts.shape[0], x.shape[1], grad.shape[1]
    out = x.new_empty((experts, width_in, width_out))
    how = precision(x.dtype)

    def launch(tile: MatrixTile) -> None:
        number = experts * triton.cdiv(width_in, tile.height) * triton.cdiv(width_out, tile.width)
        weight_grad_kernel[(min(programs(x.device, sms), number),)](
            *(x, grad, counts, out, x.shape[0], experts, width_in, width_out, x.stride(0), grad.stride(0)),
            BLOCK_ROWS=tile.depth,
            BLOCK_IN=tile.height,
            BLOCK_OUT=tile.width,
            **_options(experts, how, tile),
        )

    if out.numel():
        fits = aligned((x, grad, out), (width_in, width_out, x.stride(0), grad.stride(0)))
        tiles = matrix_tiles(x.dtype, how, capability(x.device), aligned=fits)
        kind = "grouped_mm_weight_grad", x.dtype, how, *out.shape, fits, sms
        with torch.cuda.device_of(x):
            launch(tile or chosen(kind, x.shape[0], tiles, launch, x.device))
    return out


def _options(experts: int, how: str, tile: MatrixTile) -> dict[str, int | str]:
    return {
        "EXPERTS": max(16, triton.next_power_of_2(experts)),
        "PRECISION": how,
        "GROUP": GROUP,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
