"""The tiles that kernels may work in; which one is taken is a matter of time only (annopipe/kernels/tuning.py).

All tiles of a table add up in blocks of the same depth, so an element is the sum of the same terms in the same order
whichever tile is taken. The first of each table is for where nothing can be timed; it fits into the shared memory of
every GPU since capability 8.0. ``annopipe bench kernels --offline`` prints what each takes of a multiprocessor.
"""

import dataclasses

import torch

from annopipe.errors import GraphError

__all__ = ["GROUP", "KERNEL_DTYPES", "MatrixTile", "RowTile", "matrix_tiles", "products_width", "row_tiles"]

GROUP = 8  # rows of tiles that a column of tiles goes down before the next one begins
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class RowTile:
    """What one program of a row kernel works on: so many rows, and columns of each."""

    rows: int
    width: int
    warps: int


@dataclasses.dataclass(frozen=True, slots=True)
class MatrixTile:
    """What one program of a grouped product works on.

    height, width: of the block of the result.  depth: how many terms of each sum are in shared memory at once.
    stages: how many such blocks are under way.  blackwell: whether it is for capability 10 and later, too.
    """

    height: int
    width: int
    depth: int
    warps: int
    stages: int
    blackwell: bool = True


_ROWS = (RowTile(4, 512, 4), RowTile(1, 1024, 4), RowTile(8, 256, 4), RowTile(2, 1024, 8))
_HALF = (
    MatrixTile(128, 128, 64, 8, 3),
    MatrixTile(64, 128, 64, 4, 4),
    MatrixTile(64, 64, 64, 4, 4),
    MatrixTile(128, 256, 64, 8, 3, blackwell=False),
)
_SINGLE = {
    "tf32": (MatrixTile(64, 64, 32, 4, 3), MatrixTile(128, 128, 32, 8, 2)),
    "ieee": (MatrixTile(64, 64, 16, 4, 3), MatrixTile(32, 64, 16, 4, 3)),
}


def row_tiles() -> tuple[RowTile, ...]:
    """The tiles of kernels that move rows."""
    return _ROWS


def matrix_tiles(dtype: torch.dtype, precision: str, capability: int) -> tuple[MatrixTile, ...]:
    """The tiles of grouped products.

    Args:
        dtype: of the operands.
        precision: how float32 is multiplied, "ieee" or "tf32"; nothing to other types.
        capability: the major compute capability of the GPU.

    Raises:
        GraphError: there is no kernel for the type.

    >>> [(tile.height, tile.width) for tile in matrix_tiles(torch.bfloat16, "ieee", 10)]
    [(128, 128), (64, 128), (64, 64)]
    """
    if dtype not in KERNEL_DTYPES:
        raise GraphError(f"there is no grouped kernel for {dtype}: it takes {', '.join(map(str, KERNEL_DTYPES))}")
    table = _SINGLE[precision] if dtype == torch.float32 else _HALF
    return tuple(tile for tile in table if tile.blackwell or capability < 10)


def products_width(block: int) -> int:
    """Columns that ``row_products`` takes at once for ``block`` rows per token: the order of the sum depends on it."""
    return max(16, 2048 // block)
