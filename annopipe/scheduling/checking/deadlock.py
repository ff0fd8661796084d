"""Rule: with each rank doing its actions in order, every action comes to run.

A SEND does not hold its rank; a RECV is posted; F, B and I wait for what they need, and everything behind them waits,
too. Combinations start when all their parts can.
"""

from collections.abc import Mapping

from annopipe.errors import ScheduleError
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.programs import Programs

__all__ = ["deadlock_error", "no_deadlock"]


def no_deadlock(facts: Facts) -> None:
    """Raise ScheduleError, with the ranks and actions that wait for each other, when some never run."""
    blocked = _walk(facts)
    if blocked:
        raise deadlock_error(facts.programs, {rank: _stop(facts, *stop) for rank, stop in blocked.items()})


def _waits(facts: Facts) -> list[tuple[list[int], list[int]]]:
    """For each rank, in its order: positions of actions, and positions of what they need from other stages.

    What is needed from an earlier step of the same rank is left out.
    """
    placement, begins = facts.programs.placement, facts.begins
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in facts.flat]
    for source, target in placement.edges:
        apart = placement.rank_of[source] != placement.rank_of[target]
        sent = apart and facts.has_messages
        pairs = [(target, facts.row("F", target, begins), facts.row("SEND_F" if sent else "F", source))]
        if facts.has_backward:
            needed = facts.row("SEND_B", target) if sent else facts.backward(target)
            pairs.append((source, facts.backward(source, begins), needed))
        for stage, own, needed in pairs:
            kept = range(len(own)) if apart else [i for i, at in enumerate(own) if needed[i] >= at]
            here, there = found[placement.rank_of[stage]]
            here += [own[i] for i in kept]
            there += [needed[i] for i in kept]
    ordered = []
    for here, there in found:
        # Flat lists of numbers: tuples by the hundred thousand would keep the garbage collector busy.
        order = sorted(range(len(here)), key=here.__getitem__)
        ordered.append(([here[i] for i in order], [there[i] for i in order]))
    return ordered


def _walk(facts: Facts) -> dict[int, tuple[int, int]]:
    """Run every rank as far as it goes; for each that stops short, at which position and which one it waits for."""
    starts, rank_of = facts.starts, facts.programs.placement.rank_of
    ranks = range(len(facts.flat))
    rank_at = [rank for rank, flat in enumerate(facts.flat) for rank in [rank] * len(flat)]
    near: list[set[int]] = [set() for _ in ranks]
    for source, target in facts.programs.placement.edges:
        near[rank_of[source]].add(rank_of[target])
        near[rank_of[target]].add(rank_of[source])
    progress = list(starts[:-1])  # the first position of each rank that has not run
    pending = [-1] * len(ranks)  # the position that each rank waits for
    rests = [zip(*waits, strict=True) for waits in _waits(facts)]
    ready = list(reversed(ranks))
    while ready:
        rank = ready.pop()
        for position, needed in rests[rank]:
            if needed >= progress[rank_at[needed]]:
                progress[rank], pending[rank] = position, needed
                break
        else:
            progress[rank] = starts[rank + 1]
        start, reached = starts[rank], progress[rank]
        for other in near[rank]:
            if start <= pending[other] < reached:
                pending[other] = -1
                ready.append(other)
    return {rank: (progress[rank], pending[rank]) for rank in ranks if pending[rank] >= 0}


def _stop(facts: Facts, position: int, needed: int) -> tuple[int, int]:
    """Step, and number of what is waited for there; see `deadlock_error`."""
    _, step = facts.place_at(position)
    rank = facts.place_at(needed)[0]
    number = facts.flat[rank][needed - facts.starts[rank]]
    numbering = facts.programs.numbering
    split = numbering.first("I") <= number < numbering.first("W")
    return step, number - numbering.block if split else number


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
                f"{programs.text(rank, step)} waits for {programs.numbering.text(needed)}, which no rank does",
                "add it",
            )
        rank = places[needed][0]
    cycle = seen[seen.index(rank) :]
    waits = [_wait(programs, stopped[rank], rank, *places[stopped[rank][1]], stopped) for rank in cycle]
    return problem(
        programs,
        cycle[0],
        stopped[cycle[0]][0],
        f"deadlock, these wait for each other: {'; '.join(waits)}",
        "on one of these ranks, put what is waited for in front of what waits",
        also=[(other, stopped[other][0]) for other in cycle[1:]],
    )


def _wait(
    programs: Programs,
    stop: tuple[int, int],
    rank: int,
    there: int,
    at: int,
    stopped: Mapping[int, tuple[int, int]],
) -> str:
    step, held = stop[0], stopped[there][0]
    behind = "" if at == held else f" behind {programs.text(there, held)}"
    wanted = f"{programs.text(there, at)} on rank {there}, step {at}{behind}"
    return f"rank {rank}, step {step}: {programs.text(rank, step)} waits for {wanted}"


def _places(programs: Programs, wanted: set[int]) -> dict[int, tuple[int, int]]:
    """Rank and step of the actions that end some numbers; I ends the number of its B."""
    numbering = programs.numbering
    block, split = numbering.block, numbering.first("I")
    parts = numbering.parts
    found: dict[int, tuple[int, int]] = {}
    for rank, program in enumerate(programs.ranks):
        for step, number in enumerate(program):
            for part in parts.get(number, (number,)):
                ended = part - block if split <= part < split + block else part
                if ended in wanted:
                    found.setdefault(ended, (rank, step))
    return found
