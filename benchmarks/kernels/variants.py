"""Every form in which the kernels of annopipe.kernels may be compiled: types, tiles, layouts, sizes that divide or not.

A form says of each argument of a kernel what the compiler knows: a constant, or a type and whether 16 divides it.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import triton

from annopipe.kernels import triton_grouped, triton_rows
from annopipe.kernels.tiles import GROUP, MatrixTile, RowTile, matrix_tiles, products_width, row_tiles

__all__ = ["TARGETS", "Variant", "variants"]

TARGETS = (90, 100)  # compute capability without the dot: H100 and H200; B200
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_TOP_K = 8


@dataclasses.dataclass(frozen=True)
class Variant:
    """One form of one kernel.

    name, form, tile: for the reader.  constants: arguments that the compiler knows, by name.
    types: of the other arguments, by name, as Triton writes them ("*bf16", "i32").
    aligned: whether 16 divides their addresses and numbers.  typical: whether the quick report has it.
    """

    kernel: Any
    name: str
    form: str
    tile: str
    constants: dict[str, Any]
    types: dict[str, str]
    warps: int
    stages: int
    aligned: bool
    typical: bool

    def divided(self) -> list[str]:
        """Arguments that 16 divides; numbers of rows, tokens and experts may be any."""
        free = {name for name in ("rows", "tokens", "experts") if self.types.get(name) == "i32"}
        return [name for name in self.types if name not in free] if self.aligned else []


def variants(target: int) -> Iterator[Variant]:
    """All forms for a target."""
    yield from _of_rows()
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float16, "ieee"), *_single()):
        for aligned, whole in ((True, True), (True, False), (False, False)):
            for tile in matrix_tiles(dtype, precision, target // 10, aligned=aligned, whole=whole):
                yield from _of_products(dtype, precision, tile, aligned=aligned, whole=whole)


def _single() -> tuple[tuple[torch.dtype, str], ...]:
    return (torch.float32, "tf32"), (torch.float32, "ieee")


def _of_products(
    dtype: torch.dtype, precision: str, tile: MatrixTile, *, aligned: bool, whole: bool
) -> Iterator[Variant]:
    """The products in one tile; the weight gradient adds up over rows, so no width is in parts there."""
    typical = dtype == torch.bfloat16 and whole and tile == matrix_tiles(dtype, precision, 9)[0]
    element = f"*{_NAMES[dtype]}"
    form = f"{_NAMES[dtype]}{f' {precision}' if dtype == torch.float32 else ''}"
    size = f"{tile.height}x{tile.width}x{tile.depth}"
    common: dict[str, Any] = {"PRECISION": precision, "GROUP": GROUP}
    for transposed in (False, True):
        blocks = {"BLOCK_ROWS": tile.height, "BLOCK_IN": tile.depth, "BLOCK_OUT": tile.width}
        side_by_side = "weight_stride_in" if transposed else "weight_stride_out"
        constants = {**common, **blocks, "WHOLE": whole, side_by_side: 1, "EXPERTS": 32 if aligned else 256}
        what = "input gradient" if transposed else "forward"
        sizes = "" if whole else ", any width" if not aligned else ", width in parts"
        name, kernel = "grouped_mm", triton_grouped.product_kernel
        said = f"{form}, {what}{sizes}", size
        yield _variant(kernel, name, *said, constants, element, tile, aligned=aligned, typical=typical)
    if whole or not aligned:
        blocks = {"BLOCK_ROWS": tile.depth, "BLOCK_IN": tile.height, "BLOCK_OUT": tile.width}
        constants = {**common, **blocks, "EXPERTS": 32 if aligned else 256}
        name, kernel = "grouped_mm_weight_grad", triton_grouped.weight_grad_kernel
        said = f"{form}, weight gradient{'' if aligned else ', any width'}", size
        yield _variant(kernel, name, *said, constants, element, tile, aligned=aligned, typical=typical)


def _of_rows() -> Iterator[Variant]:
    kernels = (triton_rows.permute_kernel, "permute"), (triton_rows.unpermute_kernel, "unpermute")
    for (kernel, name), weighted, aligned in itertools.product(kernels, (False, True), (True, False)):
        for (number, tile), element in itertools.product(enumerate(row_tiles()), ("bf16", "fp32")):
            blocks = {"TOP_K": _TOP_K, "WEIGHTED": weighted, "BLOCK_ROWS": tile.rows, "BLOCK_WIDTH": tile.width}
            constants = {**blocks, **({} if weighted else {"weights": None})}
            form = f"{element}{', weighted' if weighted else ''}{'' if aligned else ', any width'}"
            typical = element == "bf16" and weighted and aligned and number == 0
            said = form, f"{tile.rows}x{tile.width}"
            yield _variant(kernel, name, *said, constants, f"*{element}", tile, aligned=aligned, typical=typical)
    for top_k, aligned, element in itertools.product((1, _TOP_K, 64), (True, False), ("bf16", "fp32")):
        block = triton.next_power_of_2(top_k)
        constants = {"TOP_K": top_k, "BLOCK_K": block, "BLOCK_WIDTH": products_width(block)}
        said = f"{element}, top-{top_k}{'' if aligned else ', any width'}", f"{block}x{products_width(block)}"
        kernel, typical = triton_rows.row_products_kernel, top_k == _TOP_K and aligned and element == "bf16"
        fixed = RowTile(1, products_width(block), warps=4)
        yield _variant(kernel, "row_products", *said, constants, f"*{element}", fixed, aligned=aligned, typical=typical)


def _variant(
    kernel: Any,
    name: str,
    form: str,
    size: str,
    constants: dict[str, Any],
    element: str,
    tile: RowTile | MatrixTile,
    *,
    aligned: bool,
    typical: bool,
) -> Variant:
    stages = tile.stages if isinstance(tile, MatrixTile) else 1
    types = _types(kernel, constants, element)
    return Variant(kernel, name, form, size, constants, types, tile.warps, stages, aligned, typical)


def _types(kernel: Any, constants: dict[str, Any], element: str) -> dict[str, str]:
    """The types of the arguments that are no constants: tensors of rows, of indices, of weights, and numbers."""
    special = {"counts": "*i64", "source": "*i64", "target": "*i64", "weights": "*fp32"}
    tensors = {"x", "weight", "grad", "out"}
    if kernel in (triton_rows.unpermute_kernel, triton_rows.row_products_kernel):
        tensors.add("rows")
    found = {}
    for name in kernel.arg_names:
        if name not in constants:
            found[name] = special.get(name) or (element if name in tensors else "i32")
    return found
