"""Add UNSHARD and RESHARD: gather a stage's parameters before it computes, let go of them afterwards.

add_unshards
    Needs       programs without UNSHARD and RESHARD.
    Does        writes UNSHARD of a stage where it comes to be among the next `max_active` different stages that the
                rank computes, so that gathering runs beside what is computed in between.
    Guarantees  a stage is unsharded before it computes. With RESHARD where `add_reshards` puts it, at most `max_active`
                stages of a rank are unsharded (or those of one combination, where these are more).

add_reshards
    Needs       the UNSHARDs of `add_unshards`.
    Does        writes RESHARD behind the last use of a stage in front of its next UNSHARD, and behind its last use.
    Guarantees  UNSHARD and RESHARD of a stage alternate, and every use stands between.

    0F0 4F0 8F0 8B0 ...   ->   0UNSHARD 4UNSHARD 0F0 0RESHARD 8UNSHARD 4F0 8F0 8B0 ...        (max_active=2)

Both leave everything else in its order. Operations of users do not count as a use.
"""

from collections.abc import Sequence

from annopipe.errors import ScheduleError
from annopipe.scheduling.lowering.uses import Uses, refuse_kinds, with_kind
from annopipe.scheduling.programs import Programs

__all__ = ["add_reshards", "add_unshards"]


def add_unshards(programs: Programs, *, max_active: int = 3) -> Programs:
    """The same programs with UNSHARD in front of what needs it, as early as `max_active` stages at a time allow.

    Raises ScheduleError for `max_active` below 1, or UNSHARD or RESHARD that are there already.

    >>> from annopipe.scheduling import placement
    >>> add_unshards(Programs.of(placement.looped(1, 2), 1, [["0F0", "1F0", "1B0", "0B0"]])).texts()
    [['0UNSHARD', '1UNSHARD', '0F0', '1F0', '1B0', '0B0']]
    """
    if max_active < 1:
        raise ScheduleError(f"max_active={max_active}: at least 1 stage has to be unsharded to compute")
    refuse_kinds(programs, "UNSHARD", "RESHARD")
    numbering, unshard = with_kind(programs, "UNSHARD")
    uses = Uses(programs)
    ranks = []
    for program in programs.ranks:
        found: list[int] = []
        active: tuple[int, ...] = ()
        copied = 0
        for step, window in _windows(program, uses, max_active):
            found += program[copied:step]
            found += [unshard[stage] for stage in window if stage not in active]
            active, copied = window, step
        ranks.append([*found, *program[copied:]])
    return Programs.numbered(programs.placement, numbering, ranks)


def _windows(program: Sequence[int], uses: Uses, size: int) -> list[tuple[int, tuple[int, ...]]]:
    """The next `size` different stages, the next one first, with each step from which on they are others."""
    order: list[int] = []  # stages by their next use: going backwards, each use moves its stage to the front
    found: list[tuple[int, tuple[int, ...]]] = []
    for step in range(len(program) - 1, -1, -1):
        stages = uses(program[step])
        if not stages:
            continue
        if len(stages) == 1 and order and order[0] == stages[0] and len(found[-1][1]) <= size:
            found[-1] = step, found[-1][1]
            continue
        for stage in reversed(stages):
            if stage in order:
                order.remove(stage)
            order.insert(0, stage)
        found.append((step, tuple(order[: max(size, len(set(stages)))])))
    return found[::-1]


def add_reshards(programs: Programs) -> Programs:
    """The same programs with RESHARD behind the last use of what was unsharded.

    Raises ScheduleError for RESHARD that is there already.

    >>> from annopipe.scheduling import placement
    >>> add_reshards(Programs.of(placement.linear(1), 1, [["0UNSHARD", "0F0", "0B0"]])).texts()
    [['0UNSHARD', '0F0', '0B0', '0RESHARD']]
    """
    refuse_kinds(programs, "RESHARD")
    numbering, reshard = with_kind(programs, "RESHARD")
    unshards = {n: a.stage for n, a in enumerate(numbering.extras, numbering.base) if a.kind == "UNSHARD"}
    uses = Uses(programs)
    ranks = []
    for program in programs.ranks:
        # Backwards: the first use that is met after the end, or after an UNSHARD, is the last one before it.
        due = {unshards[number] for number in program if number in unshards}
        found: list[int] = []
        for number in reversed(program):
            if number in unshards:
                due.add(unshards[number])
            elif due:
                ended = [stage for stage in dict.fromkeys(uses(number)) if stage in due]
                found += [reshard[stage] for stage in reversed(ended)]
                due.difference_update(ended)
            found.append(number)
        ranks.append(found[::-1])
    return Programs.numbered(programs.placement, numbering, ranks)
