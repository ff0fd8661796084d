"""Rule: every action is done once.

Every stage has F of each microbatch it sees, and either B, or I and W; or no stage has any of B, I and W (forward
only). Nothing is done twice but parameter actions and operations without a microbatch.
"""

from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem

__all__ = ["nothing_missing", "nothing_twice"]


def nothing_twice(facts: Facts) -> None:
    """Raise ScheduleError for an action that is done twice, also as a part of a combination."""
    numbering = facts.programs.numbering
    free = {n for n, parts in facts.parts.items() if not parts and numbering.action(n).microbatch is None}
    often = sum(n in free for others in facts.others for _, n in others)
    done = len(facts.where) - facts.where.count(-1) - sum(facts.where[n] >= 0 for n in free)
    if facts.starts[-1] - often == done:
        return
    seen: dict[int, tuple[int, int]] = {}
    for rank, program in enumerate(facts.programs.ranks):
        for step, number in enumerate(program):
            for part in (number, *facts.parts.get(number, ())):
                if part in seen and part not in free:
                    before = seen[part]
                    raise problem(
                        facts.programs,
                        rank,
                        step,
                        f"{numbering.text(part)} is done twice; it is at rank {before[0]}, step {before[1]}, too",
                        "drop one of them",
                        also=[before],
                    )
                seen[part] = rank, step


def nothing_missing(facts: Facts) -> None:
    """Raise ScheduleError for an action that is not done, or a backward that is done whole and split."""
    for stage in range(facts.programs.placement.stages):
        forward = facts.row("F", stage)
        if forward and min(forward) < 0:
            _missing(facts, "F", stage, forward.index(-1))
        if facts.has_backward:
            _backward(facts, stage)


def _backward(facts: Facts, stage: int) -> None:
    full, inputs, weights = (facts.row(kind, stage) for kind in ("B", "I", "W"))
    absent = full.count(-1)
    if not absent and inputs.count(-1) == weights.count(-1) == len(full):
        return
    if absent == len(full) and -1 not in inputs and -1 not in weights:
        return
    for index, (b, i, w) in enumerate(zip(full, inputs, weights, strict=True)):
        if b >= 0 and (i >= 0 or w >= 0):
            text = facts.programs.numbering.text
            split = facts.number("I" if i >= 0 else "W", stage, index)
            raise problem(
                facts.programs,
                *facts.place(split),
                f"{text(split)} is a part of {text(facts.number('B', stage, index))}, which is done, too",
                "have B, or I and W",
                also=[facts.place(facts.number("B", stage, index))],
            )
        if b < 0 and (i < 0 or w < 0):
            _missing(facts, "B" if i < 0 and w < 0 else "I" if i < 0 else "W", stage, index)


def _missing(facts: Facts, kind: str, stage: int, index: int) -> None:
    text = facts.programs.numbering.text(facts.number(kind, stage, index))
    rank = facts.programs.placement.rank_of[stage]
    other = " (or I and W of it)" if kind == "B" else ""
    raise problem(facts.programs, rank, None, f"{text} is missing", f"add {text}{other}")
