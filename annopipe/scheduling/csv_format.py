"""Schedules as CSV, in the format of torch.distributed.pipelining: one row per rank, each cell one action.

    0F0,0F1,,0B0,0B1        rank 0: an empty cell is a step in which the rank idles
    1F0,1B0,1F1,1B1         rank 1: rows need not be equally long

Files that PyTorch dumps, with or without communication, load here, and those written here load there. Beyond PyTorch's
format are combinations called ``OVERLAP`` and operations of users (``2OFFLOAD0``), which it refuses, and nano-batches
(``2F0/2``), which it reads as ``2F0``.

Reading is strict: every cell is wholly an action or empty. Where PyTorch 2.15 waits (``0WAIT_SEND_F0``) is dropped, as
our runtime waits by itself (annopipe.scheduling.torch_waits). Idle steps are dropped, as a rank waits for what it needs
anyway. Spaces and tabs around a cell, quotes around it, a byte order mark, and any line ends are let pass, because
spreadsheets write them and people align columns. An empty line is a rank that does nothing.
"""

import csv
import io
from collections.abc import Iterable, Iterator

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action
from annopipe.scheduling.placement import Placement, custom, whole_number
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.torch_waits import is_wait, with_waits

__all__ = ["read", "write"]

# The actions of each rank, each with its column, counted from 1.
Grid = list[list[tuple[int, Action]]]


def write(programs: Programs, *, waits: bool = False) -> str:
    """One line per rank, without idle steps.

    Args:
        programs: what to write.
        waits: also where a rank waits for its messages and reductions, as PyTorch 2.15 wants it.

    >>> from annopipe.scheduling import placement
    >>> print(write(Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])), end="")
    0F0,0B0
    1F0,1B0
    """
    rows = programs.texts()
    if waits:
        rows = [[str(action) for action in with_waits(programs.actions(rank))] for rank in range(len(rows))]
    return "".join(",".join(row) + "\n" for row in rows)


def read(
    text: str, *, placement: Placement | None = None, microbatches: int | None = None, source: str = "the text"
) -> Programs:
    """Read a schedule; ``read(write(programs), placement=..., microbatches=...)`` gives the same programs.

    Where PyTorch 2.15 waits for messages and reductions is left out.

    Args:
        text: the content of a file.
        placement: which rank holds which stage; None takes it from the rows, and the stages as one chain.
        microbatches: how many there are; None is those that cells name.
        source: what messages call the text, such as the name of a file.

    Raises ScheduleError for a cell that is not wholly an action, with its row, rank and column; for a stage on two
    ranks, or on another one than the placement has it; and where a stage, a microbatch or a rank's actions are missing.

    >>> read("0F0,0F1,,0B0,0B1").texts()
    [['0F0', '0F1', '0B0', '0B1']]
    """
    grid = [list(_actions(cells, row, source)) for row, cells in enumerate(_rows(text, source))]
    if not grid:
        raise ScheduleError(f"{source} has no rows: write one row of actions per rank")
    placement = _placement_of(grid, source) if placement is None else placement
    if not isinstance(placement, Placement):
        raise ScheduleError(f"placement is {placement!r}; make one with annopipe.placement, such as linear(ranks=2)")
    microbatches = _microbatches_of(grid, source) if microbatches is None else microbatches
    _refuse_misfits(grid, placement, whole_number(microbatches, "microbatches"), source)
    rows = [[action for _, action in row if not is_wait(action)] for row in grid]
    return Programs.of(placement, microbatches, rows)


def _rows(text: str, source: str) -> Iterator[list[str]]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise ScheduleError(f"{source}, line {reader.line_num}: {error}") from None


def _actions(cells: Iterable[str], row: int, source: str) -> Iterator[tuple[int, Action]]:
    for column, cell in enumerate(cells, 1):
        text = cell.strip(" \t")
        if text:
            try:
                yield column, Action.parse(text)
            except ScheduleError as error:
                raise ScheduleError(f"{_place(source, row, column)}: {error}") from None


def _placement_of(grid: Grid, source: str) -> Placement:
    """One chain of the stages that are named, each on the rank whose row names it."""
    rank_of: dict[int, int] = {}
    for row, column, action, single in _singles(grid):
        rank = rank_of.setdefault(single.stage, row)
        if rank != row:
            raise ScheduleError(
                f"{_place(source, row, column)}: {action} is of stage {single.stage}, which row {rank + 1} has on rank "
                f"{rank}; a stage is on one rank"
            )
    idle = _gap({*rank_of.values(), len(grid)})
    if idle is not None:
        raise ScheduleError(
            f"{source}, row {idle + 1} (rank {idle}) has no action; take an empty row out, or pass a placement that "
            "has the stages of this rank"
        )
    missing = _gap(set(rank_of))
    if missing is not None:
        raise ScheduleError(
            f"{source} names no stage {missing}, and stages up to {max(rank_of)}; they count from 0 without gaps, or "
            "pass a placement that has them"
        )
    return custom([rank_of[stage] for stage in range(len(rank_of))])


def _microbatches_of(grid: Grid, source: str) -> int:
    named = {single.microbatch for _, _, _, single in _singles(grid) if single.microbatch is not None}
    if not named:
        raise ScheduleError(f"{source} names no microbatch; say how many there are with microbatches=")
    missing = _gap(named)
    if missing is not None:
        raise ScheduleError(
            f"{source} names no microbatch {missing}, and microbatches up to {max(named)}; they count from 0 without "
            "gaps, or say how many there are with microbatches="
        )
    return len(named)


def _refuse_misfits(grid: Grid, placement: Placement, microbatches: int, source: str) -> None:
    if len(grid) != placement.ranks:
        raise ScheduleError(
            f"{source} has {len(grid)} rows, and the placement {placement.ranks} ranks; write one row per rank"
        )
    for row, column, action, single in _singles(grid):
        problem = ""
        if single.stage >= placement.stages:
            problem = f"stage {single.stage}, and the placement has stages 0 to {placement.stages - 1}"
        elif placement.rank_of[single.stage] != row:
            problem = f"stage {single.stage}, which the placement has on rank {placement.rank_of[single.stage]}"
        elif single.microbatch is not None and single.microbatch >= microbatches:
            problem = f"microbatch {single.microbatch}, and there are microbatches 0 to {microbatches - 1}"
        if problem:
            raise ScheduleError(f"{_place(source, row, column)}: {action} is of {problem}")


def _singles(grid: Grid) -> Iterator[tuple[int, int, Action, Action]]:
    """Row from 0, column, action, and the action itself or each part of a combination."""
    for row, actions in enumerate(grid):
        for column, action in actions:
            for single in action.singles:
                yield row, column, action, single


def _gap(numbers: set[int]) -> int | None:
    """The first number from 0 to the largest that is not among them."""
    return next((expected for expected, number in enumerate(sorted(numbers)) if number != expected), None)


def _place(source: str, row: int, column: int) -> str:
    return f"{source}, row {row + 1} (rank {row}), column {column}"
