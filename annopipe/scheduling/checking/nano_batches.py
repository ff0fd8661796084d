"""Rule: all that is done with one microbatch on one stage is done in the same number of nano-batches.

A backward takes what the forward of the same nano-batch has left.
"""

from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem

__all__ = ["nano_batches_agree"]


def nano_batches_agree(facts: Facts) -> None:
    """Raise ScheduleError for an F, B, I or W in other nano-batches than another of its stage and microbatch."""
    numbering = facts.programs.numbering
    lanes = {
        (part.kind, part.stage, part.microbatch): part.nano_batches
        for action in numbering.extras
        for part in action.singles
        if part.nano_batches > 1
    }
    for stage, microbatch in dict.fromkeys((stage, microbatch) for _, stage, microbatch in lanes):
        done = {
            kind: number
            for kind in COMPUTE
            if facts.where[number := numbering.first(kind, stage) + (microbatch or 0)] >= 0
        }
        counts = {kind: lanes.get((kind, stage, microbatch), 1) for kind in done}
        (first, count), *others = counts.items()
        for kind, other in others:
            if other != count:
                texts = [
                    f"{numbering.text(done[k])} runs {'whole' if n == 1 else f'as {n} nano-batches'}"
                    for k, n in ((kind, other), (first, count))
                ]
                raise problem(
                    facts.programs,
                    *facts.place(done[kind]),
                    " and ".join(texts),
                    "give all of a stage's actions on one microbatch the same number: 2F0/2 with 2B0/2",
                    also=[facts.place(done[first])],
                )
