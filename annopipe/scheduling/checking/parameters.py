"""Rules on parameter actions, for the stages that have them.

A stage that is unsharded somewhere is unsharded whenever it computes: UNSHARD and RESHARD alternate, UNSHARD first, and
F, B, I and W stand between. REDUCE_GRAD is done once, behind the stage's last B or W.
"""

from bisect import bisect
from collections import defaultdict

from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem

__all__ = ["gradients_reduced_last", "unsharded_when_used"]


def unsharded_when_used(facts: Facts) -> None:
    """Raise ScheduleError for a stage that computes while its parameters are sharded."""
    for rank, actions in enumerate(facts.on_parameters):
        changes: dict[int, list[int]] = defaultdict(list)
        for step, action in actions:
            kind, stage = action.kind, action.stage
            if kind == "REDUCE_GRAD":
                continue
            if (kind == "UNSHARD") == bool(len(changes[stage]) % 2):
                state = "unsharded" if kind == "UNSHARD" else "sharded"
                other = "UNSHARD" if kind == "RESHARD" else "RESHARD"
                what = f"{stage}{kind} finds the parameters {state} already"
                raise problem(facts.programs, rank, step, what, f"drop it, or put {stage}{other} in front of it")
            changes[stage].append(step)
        for stage, steps in changes.items():
            _uses(facts, rank, stage, steps)


def _uses(facts: Facts, rank: int, stage: int, steps: list[int]) -> None:
    """Look at every computation of a stage that is unsharded and resharded, in turns, at some steps."""
    program = facts.programs.ranks[rank]
    flat = facts.flat[rank]
    start = facts.starts[rank]
    # Steps and positions are the same unless there are combinations.
    positions = [start + step for step in steps] if flat is program else _positions(facts, rank, steps)
    for kind in COMPUTE:
        used = [position for position in facts.row(kind, stage) if position >= 0]
        if not used or (len(positions) <= 2 and min(used) > positions[0] and max(used) < [*positions, 1 << 62][1]):
            continue
        for position in used:
            if not bisect(positions, position) % 2:
                at = facts.place_at(position)
                text = facts.programs.numbering.text(program[at[1]])
                before = any(step < at[1] for step in steps)
                raise problem(
                    facts.programs,
                    *at,
                    f"{text} needs the parameters of stage {stage}, which are "
                    f"{'resharded already' if before else 'not unsharded yet'}",
                    f"put {stage}UNSHARD in front of it",
                )


def _positions(facts: Facts, rank: int, steps: list[int]) -> list[int]:
    wanted, found, position = set(steps), [], facts.starts[rank]
    for step, number in enumerate(facts.programs.ranks[rank]):
        if step in wanted:
            found.append(position)
        position += 1 + len(facts.parts.get(number, ()))
    return found


def gradients_reduced_last(facts: Facts) -> None:
    """Raise ScheduleError for a REDUCE_GRAD that is not the end of its stage's backward, or is done twice."""
    for rank, actions in enumerate(facts.on_parameters):
        reduced: dict[int, int] = {}
        for step, action in actions:
            if action.kind != "REDUCE_GRAD":
                continue
            stage, text = action.stage, str(action)
            if stage in reduced:
                raise problem(
                    facts.programs,
                    rank,
                    step,
                    f"{text} is done twice; it is at step {reduced[stage]}, too",
                    "drop the first: gradients of all microbatches are reduced together",
                    also=[(rank, reduced[stage])],
                )
            reduced[stage] = step
            last = max((*facts.row("B", stage), *facts.row("I", stage), *facts.row("W", stage)), default=-1)
            if last < 0:
                raise problem(facts.programs, rank, step, f"{text} has no gradients: there is no backward", "drop it")
            _, end = facts.place_at(last)
            if end > step:
                late = facts.programs.text(rank, end)
                what = f"{text} is in front of {late} (step {end})"
                remedy = f"put it behind the last backward of stage {stage}"
                raise problem(facts.programs, rank, step, what, remedy, also=[(rank, end)])
