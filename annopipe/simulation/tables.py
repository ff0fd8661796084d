"""A table of texts in columns, for a terminal."""

from collections.abc import Collection, Sequence

from annopipe.simulation.wording import shorten

__all__ = ["table"]

_NARROWEST = 8


def table(rows: Sequence[Sequence[str]], width: int, left: Collection[int] = (0, 1), yielding: int = 1) -> list[str]:
    """The lines of a table whose columns are as wide as their content.

    Columns in `left` are aligned left, others right. What is too much for `width` is cut from the column `yielding`,
    down to eight characters; the ends of its texts stay.

    >>> table([("lane", "region", "hidden"), ("F", "block0/moe/dispatch", "3 ms")], width=24)
    ['lane  region      hidden', 'F     ..dispatch    3 ms']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    too_much = sum(widths) + 2 * (len(widths) - 1) - width
    if too_much > 0:
        widths[yielding] = max(_NARROWEST, widths[yielding] - too_much)
    lines = []
    for row in rows:
        cells = (
            f"{shorten(cell, width):<{width}}" if column in left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines
