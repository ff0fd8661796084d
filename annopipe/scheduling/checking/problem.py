"""The error that a broken rule raises: rank, step, what is wrong, what to do, and the grid around the place."""

from collections.abc import Sequence

from annopipe.errors import ScheduleError
from annopipe.scheduling.grid import grid
from annopipe.scheduling.programs import Programs

__all__ = ["problem"]


def problem(
    programs: Programs, rank: int, step: int | None, what: str, remedy: str, *, also: Sequence[tuple[int, int]] = ()
) -> ScheduleError:
    """An error about a place; step None is the whole rank, and `also` are places that have to do with it.

    >>> from annopipe.scheduling import placement
    >>> print(problem(Programs.of(placement.linear(1), 1, [["0F0"]]), 0, 0, "0F0 is alone", "give it company"))
    rank 0, step 0: 0F0 is alone; give it company
    <BLANKLINE>
                step 0
    -> rank 0   0F0
                ^
    """
    where = f"rank {rank}" if step is None else f"rank {rank}, step {step}"
    # A place behind the last step marks the row and no cell.
    places = [(rank, len(programs.ranks[rank]) if step is None else step), *also]
    return ScheduleError(f"{where}: {what}; {remedy}\n\n{grid(programs, places)}")
