"""Rule: what forwards keep for their backwards fits into a limit, on every rank.

F takes the activation of its stage when it starts; B gives it back when it ends. I gives back all but the share that W
needs, and W the rest. Where nothing has a backward, F gives back itself what it took. What a combination takes it takes
when it starts, and gives back when it ends.
"""

from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem

__all__ = ["fits_in_memory"]

# Sums of shares are compared with a limit that may be the sum itself.
_ROUNDING = 1e-9


def fits_in_memory(facts: Facts, memory: float, costs: ActionCosts) -> None:
    """Raise ScheduleError where a rank keeps more than `memory`, in the unit of `costs.activation`."""
    programs = facts.programs
    stages, m = programs.placement.stages, programs.microbatches
    sizes = [costs.activation_of(stage) for stage in range(stages)]
    # By row (number // microbatches): F, B, I, W of every stage, and nothing for messages and extras.
    change = [
        *sizes,
        *(-size for size in sizes),
        *(-size * (1.0 - costs.kept_for_weight) for size in sizes),
        *(-size * costs.kept_for_weight for size in sizes),
    ]
    computed, limit = len(change) * m, memory * (1.0 + _ROUNDING)
    forward_only = not facts.has_backward
    for rank, program in enumerate(programs.ranks):
        kept = 0.0
        for step, number in enumerate(program):
            if number < computed:
                kept += change[number // m]
                released = -change[number // m] if forward_only else 0.0
            elif number in facts.parts:
                changes = [change[part // m] for part in facts.parts[number]]
                taken = sum(size for size in changes if size > 0.0)
                kept += taken
                released = -taken if forward_only else sum(size for size in changes if size < 0.0)
            else:
                continue
            if kept <= limit:
                kept += released
                continue
            raise problem(
                programs,
                rank,
                step,
                f"{programs.numbering.text(number)} brings the activations kept to {kept:g}, and the limit is "
                f"{memory:g}",
                "start fewer forwards before the next backward, or raise the limit",
            )
