"""Rule: no part of a combination needs another part of it.

What a part needs through actions in between, on this rank or on others, is found as a deadlock: the combination would
wait for itself.
"""

from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.dependencies import dependencies

__all__ = ["parts_are_independent"]


def parts_are_independent(facts: Facts) -> None:
    """Raise ScheduleError for a combination of which one part needs another."""
    numbering, m = facts.programs.numbering, facts.programs.microbatches
    # Only actions of one microbatch need each other.
    several = {n for n, parts in facts.parts.items() if len({part % m for part in parts}) < len(parts)}
    if not several:
        return
    tables = dependencies(facts.programs.placement, numbering)
    for rank, program in enumerate(facts.programs.ranks):
        for step, number in enumerate(program):
            if number not in several:
                continue
            ends = {tables.ends[part]: part for part in facts.parts[number]}
            for part in facts.parts[number]:
                needed = next((ends[n] for n in tables.waits_for(part, m) if n in ends), None)
                if needed is not None:
                    text = numbering.text
                    raise problem(
                        facts.programs,
                        rank,
                        step,
                        f"{text(part)} needs {text(needed)}, and {text(number)} runs both together",
                        "combine actions that do not need each other",
                    )
