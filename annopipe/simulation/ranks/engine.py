"""When everything happens on many ranks that each run a fixed program.

A rank runs its actions in order. A computation starts when its rank is free and its inputs have ended or, for messages,
arrived. A message enters its link when its rank comes to it: a link carries one message after the other, first come
first served, which is program order, because all messages of a link have one sender.

Every rank runs on until an input is missing, and goes on when that input ends: nothing is polled, and no queue of
events is needed, because with fixed orders each time is a maximum over times that are already known.
"""

from collections.abc import Sequence
from itertools import chain

from annopipe.errors import ScheduleError
from annopipe.simulation.ranks.programs import COMPUTATION, GROUP, RankPrograms

__all__ = ["run"]

_NAMED = 8  # of the ranks that wait, as many are named in an error


def run(programs: RankPrograms) -> tuple[list[float], list[float]]:
    """Start and end of every action by number; the end of a message is its arrival, of what no rank does -1.

    The list of ends has one entry more, 0.0: the end of -1, "nothing".

    Raises ScheduleError when the programs cannot finish, and says who waits for what.
    """
    durations, first, second, link = programs.durations, programs.first, programs.second, programs.link
    latencies, rest = programs.latencies, [iter(program) for program in programs.ranks]
    starts = [0.0] * len(durations)
    # An end below 0: not ended yet. The ranks that wait for it are a linked list, with -2 - rank for a rank and -1 for
    # its end: the head stands in place of the end, the next ones by rank in next_waiting.
    ends = [-1.0] * len(durations)
    ends.append(0.0)
    free, clock, next_waiting = [0.0] * len(programs.links), [0.0] * len(rest), [-1.0] * len(rest)
    held: list[tuple[int, ...]] = [()] * len(rest)  # the action at which a rank waits
    ready = [*range(len(rest))]
    while ready:
        rank = ready.pop()
        now = clock[rank]
        for number in chain(held[rank], rest[rank]):
            line = link[number]
            if line >= 0:
                missing = first[number]
                if ends[missing] < 0.0:
                    break
                at = free[line]
                if at < now:  # noqa: PLR1730 - max() is a call, and this runs 100,000 times
                    at = now
                starts[number] = at
                free[line] = at = at + durations[number]
                woken = ends[number]
                ends[number] = at + latencies[line]
            else:
                if line == COMPUTATION:
                    missing = first[number]
                    at = ends[missing]
                    if at > now:
                        now = at
                    elif at < 0.0:
                        break
                    missing = second[number]
                    at = ends[missing]
                else:
                    at, missing = _inputs(programs, ends, number)
                if at > now:
                    now = at
                elif at < 0.0:
                    break
                starts[number] = now
                woken = ends[number]
                ends[number] = now = now + durations[number]
                if line == GROUP:
                    _end_parts(programs, number, starts, ends, next_waiting, ready)
            if woken < -1.0:
                _wake(woken, next_waiting, ready)
        else:
            held[rank] = ()
            continue
        clock[rank], held[rank] = now, (number,)
        next_waiting[rank], ends[missing] = ends[missing], -2.0 - rank
    if any(held):
        raise ScheduleError(_stuck(programs, ends, held))
    return starts, ends


def _wake(woken: float, next_waiting: Sequence[float], ready: list[int]) -> None:
    """Let the ranks of a list go on."""
    while woken < -1.0:
        rank = int(-2.0 - woken)
        ready.append(rank)
        woken = next_waiting[rank]


def _end_parts(
    programs: RankPrograms,
    number: int,
    starts: list[float],
    ends: list[float],
    next_waiting: Sequence[float],
    ready: list[int],
) -> None:
    """The parts of a combination end when it ends."""
    for part in programs.parts.get(number, ()):
        _wake(ends[part], next_waiting, ready)
        starts[part], ends[part] = starts[number], ends[number]


def _inputs(programs: RankPrograms, ends: Sequence[float], number: int) -> tuple[float, int]:
    """When all inputs are there; before that -1.0 and the first that is missing."""
    first, second, more, latest = programs.first, programs.second, programs.more, 0.0
    for single in programs.parts.get(number, (number,)):
        for before in (first[single], second[single], *more.get(single, ())):
            at = ends[before]
            if at < 0.0:
                return -1.0, before
            if at > latest:  # noqa: PLR1730 - max() is a call, and this runs 100,000 times
                latest = at
    return latest, -1


def _stuck(programs: RankPrograms, ends: Sequence[float], held: Sequence[tuple[int, ...]]) -> str:
    owner = {number: rank for rank, program in enumerate(programs.ranks) for number in program}
    for number, parts in programs.parts.items():
        owner |= dict.fromkeys(parts, owner.get(number, -1))
    lines = []
    for rank, at in enumerate(held):
        for number in at:
            _, missing = _inputs(programs, ends, number)
            where = (
                f"which rank {owner[missing]} has not reached" if owner.get(missing, -1) >= 0 else "which no rank does"
            )
            before = list(programs.ranks[rank])[: list(programs.ranks[rank]).index(number)]
            step = sum(programs.link[other] < 0 or programs.link[other] in programs.own for other in before)
            counted = f"step {step}" if step == len(before) else f"step {step} (without messages)"
            what, whom = programs.label(number).text, programs.label(missing).text
            lines.append(f"rank {rank}, {counted}: {what} waits for {whom}, {where}")
    more = [f"and {len(lines) - _NAMED} more ranks"] if len(lines) > _NAMED else []
    name = f"schedule {programs.name!r}" if programs.name else "the schedule"
    return "\n  ".join(
        [f"{name} cannot finish; change the order so that one of these can go on:", *lines[:_NAMED], *more]
    )
