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
from annopipe.simulation.ranks.programs import COMPUTATION, RankPrograms

__all__ = ["run"]

_NAMED = 8  # of the ranks that wait, as many are named in an error


def run(programs: RankPrograms) -> tuple[list[float], list[float]]:
    """Start and end of every action by number; the end of a message is its arrival, of what no rank does -1.

    The list of ends has one entry more, 0.0: the end of -1, "nothing".

    Raises ScheduleError when the programs cannot finish, and says who waits for what.
    """
    durations, first, second, link = programs.durations, programs.first, programs.second, programs.link
    latencies, parts = programs.latencies, programs.parts
    starts = [0.0] * len(durations)
    ends = [*[-1.0] * len(durations), 0.0]
    free = [0.0] * len(programs.links)
    # The ranks that wait for an action are a linked list: its head by action, the next one by rank.
    waiting, next_waiting = [-1] * len(durations), [-1] * len(programs.ranks)
    clock = [0.0] * len(programs.ranks)
    held: list[tuple[int, ...]] = [()] * len(programs.ranks)  # the action at which a rank waits
    rest = [iter(program) for program in programs.ranks]
    ready = [*range(len(programs.ranks))]
    while ready:
        rank = ready.pop()
        now = clock[rank]
        for number in chain(held[rank], rest[rank]):
            missing = first[number]
            at = ends[missing]
            if at > now:
                now = at
            elif at < 0.0:
                break
            missing = second[number]
            at = ends[missing]
            if at > now:
                now = at
            elif at < 0.0:
                break
            line = link[number]
            if line == COMPUTATION:
                starts[number] = now
                ends[number] = now = now + durations[number]
            elif line >= 0:
                at = free[line]
                starts[number] = at = max(now, at)
                free[line] = at = at + durations[number]
                ends[number] = at + latencies[line]
            else:
                at, missing = _inputs(programs, ends, number)
                now = max(now, at)
                if missing >= 0:
                    break
                starts[number] = now
                ends[number] = now = now + durations[number]
                for part in parts.get(number, ()):
                    starts[part], ends[part] = starts[number], now
                    _wake(part, waiting, next_waiting, ready)
            woken = waiting[number]
            while woken >= 0:
                ready.append(woken)
                woken = next_waiting[woken]
        else:
            held[rank] = ()
            continue
        clock[rank], held[rank] = now, (number,)
        next_waiting[rank], waiting[missing] = waiting[missing], rank
    if any(held):
        raise ScheduleError(_stuck(programs, ends, held))
    return starts, ends


def _inputs(programs: RankPrograms, ends: Sequence[float], number: int) -> tuple[float, int]:
    """When all inputs so far are there, and the first that is missing; -1 when none is."""
    latest = 0.0
    for before in programs.inputs(number):
        if ends[before] < 0.0:
            return latest, before
        latest = max(latest, ends[before])
    return latest, -1


def _wake(number: int, waiting: Sequence[int], next_waiting: Sequence[int], ready: list[int]) -> None:
    woken = waiting[number]
    while woken >= 0:
        ready.append(woken)
        woken = next_waiting[woken]


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
            lines.append(
                f"rank {rank}, step {list(programs.ranks[rank]).index(number)}: {programs.label(number).text} waits for "
                f"{programs.label(missing).text}, {where}"
            )
    more = [f"and {len(lines) - _NAMED} more ranks"] if len(lines) > _NAMED else []
    name = f"schedule {programs.name!r}" if programs.name else "the schedule"
    return "\n  ".join(
        [f"{name} cannot finish; change the order so that one of these can go on:", *lines[:_NAMED], *more]
    )
