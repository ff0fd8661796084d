"""How long ranks idle for messages: the communication that no computation hides."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annopipe.simulation.intervals import length, merge
from annopipe.simulation.ranks.programs import RankPrograms

__all__ = ["ActionComm", "by_action", "exposed"]


@dataclass(frozen=True, slots=True)
class ActionComm:
    """Communication of one action of a rank, in seconds.

    Attributes:
        inside: inside the action.  inside_exposed: the part that nothing hides.
        awaited: for how long messages that it needs are under way.  awaited_exposed: the part for which its rank idles.
    """

    inside: float = 0.0
    inside_exposed: float = 0.0
    awaited: float = 0.0
    awaited_exposed: float = 0.0


def exposed(programs: RankPrograms, starts: Sequence[float], ends: Sequence[float]) -> tuple[float, ...]:
    """For each rank the seconds in which it idles while a message that it waits for is under way.

    A message is under way from when its rank sends it, in line for its link too, to its arrival. Exposed communication
    inside actions is added.
    """
    issued = _issued(programs, ends)
    found = []
    for program in programs.ranks:
        numbers, waited = _waits(programs, program, issued, starts, ends)
        inside = map(programs.exposed, numbers) if programs.exposed else ()
        found.append(math.fsum([*waited, *inside]))
    return tuple(found)


def by_action(
    programs: RankPrograms, starts: Sequence[float], ends: Sequence[float]
) -> tuple[tuple[ActionComm, ...], ...]:
    """For each rank the communication of what occupies it, in order; the exposed parts add up to `exposed`."""
    issued = _issued(programs, ends)
    return tuple(_rows(programs, program, issued, starts, ends) for program in programs.ranks)


def _rows(
    programs: RankPrograms,
    program: Sequence[int],
    issued: Mapping[int, float],
    starts: Sequence[float],
    ends: Sequence[float],
) -> tuple[ActionComm, ...]:
    found = []
    for number, waited in zip(*_waits(programs, program, issued, starts, ends), strict=True):
        inside_exposed = programs.exposed(number) if programs.exposed else 0.0
        inside = programs.communication(number) if programs.communication else 0.0
        awaited = length(merge((issued[n], ends[n]) for n in programs.inputs(number) if n in issued))
        found.append(ActionComm(max(inside, inside_exposed), inside_exposed, max(awaited, waited), waited))
    return tuple(found)


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


def _waits(
    programs: RankPrograms,
    program: Sequence[int],
    issued: Mapping[int, float],
    starts: Sequence[float],
    ends: Sequence[float],
) -> tuple[list[int], list[float]]:
    """What occupies a rank, and for how long it idled for messages before each."""
    numbers = [number for number in program if programs.link[number] < 0]
    found: list[float] = []
    free = 0.0
    for number in numbers:
        waited = 0.0
        if starts[number] > free:
            awaited = [n for n in programs.inputs(number) if n in issued and ends[n] > free]
            waited = length(merge((max(free, issued[n]), ends[n]) for n in awaited))
        found.append(waited)
        free = ends[number]
    return numbers, found
