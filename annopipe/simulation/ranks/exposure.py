"""How long ranks idle for messages: the communication that no computation hides."""

import math
from collections.abc import Mapping, Sequence

from annopipe.simulation.intervals import length, merge
from annopipe.simulation.ranks.programs import RankPrograms

__all__ = ["exposed"]


def exposed(programs: RankPrograms, starts: Sequence[float], ends: Sequence[float]) -> tuple[float, ...]:
    """For each rank the seconds in which it idles while a message that it waits for is under way.

    A message is under way from when its rank sends it, in line for its link too, to its arrival. Exposed communication
    inside actions is added.
    """
    issued = _issued(programs, ends)
    return tuple(_of_rank(programs, program, issued, starts, ends) for program in programs.ranks)


def _issued(programs: RankPrograms, ends: Sequence[float]) -> dict[int, float]:
    """When the sender comes to each message."""
    found: dict[int, float] = {}
    own = programs.own
    for program in programs.ranks:
        now = 0.0
        for number in program:
            if programs.link[number] < 0:
                now = ends[number]
            elif programs.link[number] not in own:
                found[number] = now
    return found


def _of_rank(
    programs: RankPrograms,
    program: Sequence[int],
    issued: Mapping[int, float],
    starts: Sequence[float],
    ends: Sequence[float],
) -> float:
    found: list[float] = []
    free = 0.0
    for number in program:
        if programs.link[number] >= 0:
            continue
        if starts[number] > free:
            awaited = [n for n in programs.inputs(number) if n in issued and ends[n] > free]
            found.append(length(merge((max(free, issued[n]), ends[n]) for n in awaited)))
        if programs.exposed:
            found.append(programs.exposed(number))
        free = ends[number]
    return math.fsum(found)
