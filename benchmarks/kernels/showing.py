"""The table of what our kernels take beside PyTorch's operations."""

from collections.abc import Iterable

from tabulate import tabulate

from benchmarks.kernels.measuring import Row

__all__ = ["table"]


def table(rows: Iterable[Row]) -> str:
    """One line for each operation, times measured."""
    lines = [
        (
            row.name,
            f"{row.ours_s * 1e6:.1f}",
            f"{row.theirs_s * 1e6:.1f}",
            f"{row.theirs_s / row.ours_s:.2f}",
            f"{row.share:.0%} of {row.ceiling}",
            f"{row.difference:.1e}",
        )
        for row in rows
    ]
    headers = ("operation (measured)", "ours, us", "PyTorch, us", "PyTorch / ours", "share of", "difference")
    return tabulate(lines, headers=headers, disable_numparse=True)
