"""Rule: a rank does actions of its own stages only, on microbatches that the stage's copy of the model sees."""

from annopipe.errors import ScheduleError
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.numbering import BLOCKS

__all__ = ["own_microbatches_only", "own_stages_only"]


def own_stages_only(facts: Facts) -> None:
    """Raise ScheduleError for an action of a stage that another rank holds."""
    rank_of, m, numbering = facts.programs.placement.rank_of, facts.programs.microbatches, facts.programs.numbering
    for stage, rank in enumerate(rank_of):
        start, stop = facts.starts[rank], facts.starts[rank + 1]
        for kind in BLOCKS:
            first = numbering.first(kind, stage)
            where = facts.where[first : first + m]
            last = max(where)
            if last < 0 or (last < stop and min(where) >= start):
                continue
            for number, position in enumerate(where, first):
                if position >= 0 and not start <= position < stop:
                    raise _foreign(facts, *facts.place(number), stage)
    for rank, others in enumerate(facts.others):
        for step, number in others:
            stage = numbering.action(number).stage
            if rank_of[stage] != rank:
                raise _foreign(facts, rank, step, stage)


def _foreign(facts: Facts, rank: int, step: int, stage: int) -> ScheduleError:
    programs = facts.programs
    text = programs.text(rank, step)
    held = " ".join(map(str, programs.placement.stages_on[rank]))
    owner = programs.placement.rank_of[stage]
    remedy = f"move it to rank {owner}, or choose another placement"
    return problem(programs, rank, step, f"{text} is of stage {stage}, and this rank holds {held}", remedy)


def own_microbatches_only(facts: Facts) -> None:
    """Raise ScheduleError for a microbatch that another copy of the model sees."""
    programs = facts.programs
    placement, numbering, m = programs.placement, programs.numbering, programs.microbatches
    if placement.copies == 1:
        return
    for stage in range(placement.stages):
        seen = facts.seen(stage)
        for kind in BLOCKS:
            first = numbering.first(kind, stage)
            for k in (*range(seen.start), *range(seen.stop, m)):
                if facts.where[first + k] >= 0:
                    share = f"microbatches {seen.start} to {seen.stop - 1}" if seen else "no microbatch"
                    raise problem(
                        programs,
                        *facts.place(first + k),
                        f"{stage}{kind}{k} is on copy {placement.copy_of[stage]} of the model, which sees {share}",
                        "give it to a stage of the other copy",
                    )
