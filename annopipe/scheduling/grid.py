"""Programs as text, one row a rank and one column a step, with an arrow at the places that an error is about.

            step 0   step 1   step 2
   rank 0   0F0      0B0      0F1
-> rank 1   1F0      1F0      1B0
                     ^
"""

from collections.abc import Iterable, Sequence

from annopipe.scheduling.programs import Programs

__all__ = ["grid"]

Place = tuple[int, int]
_ROWS, _COLUMNS = 9, 9


def grid(programs: Programs, places: Sequence[Place] = (), *, rows: int = _ROWS, columns: int = _COLUMNS) -> str:
    """The programs around the first of some places (rank, step), with an arrow at each of them that is in sight.

    At most `rows` ranks and `columns` steps are shown; without a place, the first ones.

    >>> from annopipe.scheduling import placement
    >>> print(grid(Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]]), [(1, 0)]))
                step 0   step 1
       rank 0   0F0      0B0
    -> rank 1   1F0      1B0
                ^
    """
    rank, step = places[0] if places else (0, 0)
    longest = max(map(len, programs.ranks))
    ranks, steps = _window(rank, len(programs.ranks), rows), _window(step, longest, columns)
    before, after = "... " if steps.start else "", "..." if steps.stop < longest else ""
    text = programs.numbering.text
    table = [["", *(f"step {step}" for step in steps)]]
    marks: list[list[str] | None] = [None]
    for rank in ranks:
        program = programs.ranks[rank]
        arrow = "-> " if rank in {place[0] for place in places} else "   "
        marked = {step for marked_rank, step in places if marked_rank == rank and step < len(program)}
        table.append([f"{arrow}rank {rank}", *(text(program[step]) if step < len(program) else "" for step in steps)])
        marks.append(["", *("^" if step in marked else "" for step in steps)] if marked & set(steps) else None)
    widths = [max(len(row[column]) for row in table) + 3 for column in range(len(table[0]))]
    lines = ["   ..."] if ranks.start else []
    for row, mark in zip(table, marks, strict=True):
        for cells in (row, mark) if mark else (row,):
            line = _line(cells, widths, before if cells is row else " " * len(before))
            ends = after if cells is row and row is not table[0] else ""
            lines.append((line + ends).rstrip())
    if ranks.stop < len(programs.ranks):
        lines.append("   ...")
    return "\n".join(lines)


def _line(cells: Iterable[str], widths: Sequence[int], before: str) -> str:
    head, *rest = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return head + before + "".join(rest)


def _window(middle: int, length: int, size: int) -> range:
    """At most `size` of the numbers below `length`, around one of them."""
    start = max(0, min(middle - size // 2, length - size))
    return range(start, min(length, start + size))
