"""Rule: with each rank doing its actions in order, every action comes to run.

A SEND does not hold its rank; a RECV is posted; F, B and I wait for what they need, and everything behind them waits,
too. Combinations start when all their parts can.
"""

from collections.abc import Mapping
from itertools import chain

from annopipe.errors import ScheduleError
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.dependencies import SEVERAL, parts_of, waits
from annopipe.scheduling.programs import Programs

__all__ = ["deadlock_error", "no_deadlock"]


def no_deadlock(facts: Facts) -> None:
    """Raise ScheduleError, with the ranks and actions that wait for each other, when some never run."""
    blocked = _walk(facts)
    if blocked:
        stopped = {}
        for rank, (index, needed) in blocked.items():
            stopped[rank] = facts.step(rank, index), needed
        raise deadlock_error(facts.programs, stopped)


def _walk(facts: Facts) -> dict[int, tuple[int, int]]:
    """Run every rank as far as it goes; for each that stops short, where (index into flat) and what it waits for."""
    ends = facts.dependencies.ends
    needs, several = waits(facts.dependencies, facts.parts, facts.programs.microbatches)
    # done[-1]: nothing to wait for; done[SEVERAL]: look it up.
    done = [False] * (len(needs) + 1) + [True]
    rests = [iter(flat) for flat in facts.flat]
    held: dict[int, int] = {}  # what each rank that waits stopped at
    waiting: dict[int, list[int]] = {}  # ranks by the number that they wait for
    ready = list(range(len(rests)))[::-1]
    while ready:
        rank = ready.pop()
        stopped = held.pop(rank, None)
        for number in rests[rank] if stopped is None else chain((stopped,), rests[rank]):
            needed = needs[number]
            if not done[needed]:
                if needed == SEVERAL:
                    needed = next((n for n in several[number] if not done[n]), -1)
                if needed >= 0:
                    waiting.setdefault(needed, []).append(rank)
                    held[rank] = number
                    break
            ended = ends[number]
            done[ended] = True
            if ended in waiting:
                ready += waiting.pop(ended)
    stops = ((rank, needed) for needed, ranks in waiting.items() for rank in ranks)
    return {rank: (facts.flat[rank].index(held[rank]), needed) for rank, needed in stops}


def deadlock_error(programs: Programs, stopped: Mapping[int, tuple[int, int]]) -> ScheduleError:
    """The error for ranks that stopped: step, and number of the action that the rank waits for there.

    It names a cycle of ranks each of which waits for the next one, or the action that no rank does.
    """
    places = _places(programs, {needed for _, needed in stopped.values()})
    rank = min(stopped)
    seen: list[int] = []
    while rank not in seen:
        seen.append(rank)
        step, needed = stopped[rank]
        if needed not in places:
            return problem(
                programs,
                rank,
                step,
                f"{_text(programs, rank, step)} waits for {programs.numbering.text(needed)}, which no rank does",
                "add it",
            )
        rank = places[needed][0]
    cycle = seen[seen.index(rank) :]
    waits = [_wait(programs, stopped, places, rank) for rank in cycle]
    step, _ = stopped[cycle[0]]
    others = [(other, stopped[other][0]) for other in cycle[1:]]
    return problem(
        programs,
        cycle[0],
        step,
        f"{'these actions wait' if others else 'it waits'} for each other: {'; '.join(waits)}"
        if others
        else f"the rank waits for itself: {waits[0]}",
        "put one of the actions that are waited for in front of the one that waits on its rank",
        also=others,
    )


def _wait(
    programs: Programs, stopped: Mapping[int, tuple[int, int]], places: Mapping[int, tuple[int, int]], rank: int
) -> str:
    step, needed = stopped[rank]
    there, at = places[needed]
    held, _ = stopped[there]
    wanted = _text(programs, there, at)
    where = "it is a part of the same action" if at == held else f"behind {_text(programs, there, held)}"
    if at == held and there != rank:
        where = f"step {at}"
    return f"rank {rank}, step {step}: {_text(programs, rank, step)} waits for {wanted} on rank {there} ({where})"


def _text(programs: Programs, rank: int, step: int) -> str:
    return programs.numbering.text(programs.ranks[rank][step])


def _places(programs: Programs, wanted: set[int]) -> dict[int, tuple[int, int]]:
    """Rank and step of the actions that end some numbers; I ends the number of its B."""
    numbering = programs.numbering
    block, split = numbering.block, numbering.first("I")
    parts = parts_of(numbering)
    found: dict[int, tuple[int, int]] = {}
    for rank, program in enumerate(programs.ranks):
        for step, number in enumerate(program):
            for part in parts.get(number, (number,)):
                ended = part - block if split <= part < split + block else part
                if ended in wanted:
                    found.setdefault(ended, (rank, step))
    return found
