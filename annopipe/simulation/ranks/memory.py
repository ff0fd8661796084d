"""What a rank keeps in memory over time, from what the start and the end of each action add.

Actions count in the order in which the rank runs them: what one frees at its end is free for the next at its start.
"""

from collections.abc import Sequence
from operator import itemgetter

from annopipe.simulation.ranks.programs import RankPrograms

__all__ = ["peak", "steps"]


def peak(
    programs: RankPrograms,
    numbers: Sequence[int],
    beside: Sequence[int],
    starts: Sequence[float],
    ends: Sequence[float],
) -> float:
    """The most that the actions of a rank, and those beside them, keep at once, without what it keeps all the time."""
    if not programs.at_start:
        return 0.0
    held = most = 0.0
    if beside:
        for _, change in _changes(programs, numbers, beside, starts, ends):
            held += change
            most = max(most, held)
        return most
    at_start, at_end = programs.at_start, programs.at_end
    for number in numbers:
        held += at_start[number]
        if held > most:  # noqa: PLR1730 - max() is a call, and this runs 100,000 times
            most = held
        held += at_end[number]
    return max(most, held)


def steps(
    programs: RankPrograms,
    rank: int,
    numbers: Sequence[int],
    beside: Sequence[int],
    starts: Sequence[float],
    ends: Sequence[float],
) -> tuple[tuple[float, float], ...]:
    """(from when, how much) for a rank, parameters included; the largest amount is the peak."""
    parameters = programs.parameters[rank] if programs.parameters else 0.0
    found = [(0.0, parameters)]
    held = 0.0
    for time, change in _changes(programs, numbers, beside, starts, ends):
        held += change
        amount = parameters + held
        # Freed and then allocated at one moment is one step; allocated and then freed is not: it may be the peak.
        if found[-1][0] == time and found[-1][1] <= amount:
            found.pop()
        if not found or found[-1][1] != amount:
            found.append((time, amount))
    return tuple(found)


def _changes(
    programs: RankPrograms,
    numbers: Sequence[int],
    beside: Sequence[int],
    starts: Sequence[float],
    ends: Sequence[float],
) -> list[tuple[float, float]]:
    """When what is added, in order; at one moment the rank's own actions come first."""
    if not programs.at_start:
        return []
    found = []
    for number in (*numbers, *beside):
        if programs.at_start[number]:
            found.append((starts[number], programs.at_start[number]))
        if programs.at_end[number]:
            found.append((ends[number], programs.at_end[number]))
    return sorted(found, key=itemgetter(0)) if beside else found
