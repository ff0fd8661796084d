"""The tiles that kernels may work in; which one is taken is a matter of time only (annopipe/kernels/tuning.py).

All tiles of a table add up in blocks of the same depth, so an element is the sum of the same terms in the same order
whichever tile is taken. The first of each table is for where nothing can be timed; it fits into the shared memory of
every GPU since capability 8.0. ``annopipe bench kernels --offline`` prints what each takes of a multiprocessor.
"""

import dataclasses
from typing import Literal

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
    stages: how many such blocks are under way.  blackwell: for which widths it is on capability 10 and later, where it
        would spill registers otherwise: "all", "whole" (of which the depth is a divisor) or "none".
    """

    height: int
    width: int
    depth: int
    warps: int
    stages: int
    blackwell: Literal["all", "whole", "none"] = "all"


_ROWS = (RowTile(4, 512, 4), RowTile(1, 1024, 4), RowTile(8, 256, 4), RowTile(2, 1024, 8))
_ALIGNED = {
    "half": (
        MatrixTile(128, 128, 64, 8, 3, blackwell="whole"),
        MatrixTile(64, 128, 64, 4, 4),
        MatrixTile(64, 64, 64, 4, 4),
        MatrixTile(128, 256, 64, 8, 3, blackwell="none"),
    ),
    "tf32": (MatrixTile(64, 128, 32, 8, 3), MatrixTile(128, 128, 32, 8, 2)),
    "ieee": (MatrixTile(64, 64, 16, 4, 3), MatrixTile(32, 64, 16, 4, 3)),
}
_ANY = {
    "half": (MatrixTile(64, 64, 16, 4, 1), MatrixTile(64, 32, 16, 4, 1)),
    "tf32": (MatrixTile(64, 32, 32, 4, 1),),
    "ieee": (MatrixTile(32, 32, 16, 4, 1),),
}


def row_tiles() -> tuple[RowTile, ...]:
    """The tiles of kernels that move rows."""
    return _ROWS


def matrix_tiles(
    dtype: torch.dtype, precision: str, capability: int, *, aligned: bool = True, whole: bool = True
) -> tuple[MatrixTile, ...]:
    """The tiles of grouped products.

    Args:
        dtype: of the operands.
        precision: how float32 is multiplied, "ieee" or "tf32"; nothing to other types.
        capability: the major compute capability of the GPU.
        aligned: whether 16 divides every width, stride and address; if not, values are loaded one by one, which takes
            so many registers that tiles have to be small.
        whole: whether the depth of the tiles divides the width that is added up over.

    Raises:
        GraphError: there is no kernel for the type.

    >>> [(tile.height, tile.width) for tile in matrix_tiles(torch.bfloat16, "ieee", 10)]
    [(128, 128), (64, 128), (64, 64)]
    """
    if dtype not in KERNEL_DTYPES:
        raise GraphError(f"there is no grouped kernel for {dtype}: it takes {', '.join(map(str, KERNEL_DTYPES))}")
    kind = precision if dtype == torch.float32 else "half"
    table = (_ALIGNED if aligned else _ANY)[kind]
    fits = "whole" if whole else "all"
    return tuple(tile for tile in table if capability < 10 or tile.blackwell in ("all", fits))


def products_width(block: int) -> int:
    """Columns that ``row_products`` takes at once for ``block`` rows per token: the order of the sum depends on it."""
    return max(16, 2048 // block)
