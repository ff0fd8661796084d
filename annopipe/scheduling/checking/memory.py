"""Rule: what forwards keep for their backwards fits into a limit, on every rank.

F takes the activation of its stage when it starts; B gives it back when it ends. I gives back all but the share that W
needs (or takes more, for a share above 1), and W the rest. What a combination takes it takes when it starts, and gives
back when it ends. An operation changes the memory where it stands in the order of its rank, also when it runs beside
the computation.
"""

from collections.abc import Sequence

from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.operations import Operation

__all__ = ["fits_in_memory"]

# Sums of shares are compared with a limit that may be the sum itself.
_ROUNDING = 1e-9


def fits_in_memory(facts: Facts, memory: float, costs: ActionCosts, operations: Sequence[Operation] = ()) -> None:
    """Raise ScheduleError where a rank keeps more than `memory`, in the unit of `costs.activation`."""
    programs, numbering = facts.programs, facts.programs.numbering
    stages, m = programs.placement.stages, programs.microbatches
    sizes = [costs.activation_of(stage) for stage in range(stages)]
    for_weight = [costs.kept_for_weight_of(stage) for stage in range(stages)]
    # What the backward finds: operations have changed it.
    left = [
        size * (1.0 + sum(operation.memory for operation in operations if operation.applies_to(stage)))
        for stage, size in enumerate(sizes)
    ]
    # By row (number // microbatches): F, B, I, W of every stage, and nothing for messages.
    change = [
        *sizes,
        *(-size for size in left),
        *(-size * (1.0 - share) for size, share in zip(left, for_weight, strict=True)),
        *(-size * share for size, share in zip(left, for_weight, strict=True)),
    ]
    forward_only = not facts.has_backward  # a forward then gives back at its end what it took, whatever is done with it
    shares = {} if forward_only else {operation.name: operation.memory for operation in operations if operation.memory}
    computed, limit = len(change) * m, memory * (1.0 + _ROUNDING)
    for rank, program in enumerate(programs.ranks):
        kept = 0.0
        for step, number in enumerate(program):
            if number < computed:
                kept += change[number // m]
                released = -change[number // m] if forward_only else 0.0
            elif facts.parts.get(number):
                changes = [change[part // m] for part in facts.parts[number]]
                taken = sum(size for size in changes if size > 0.0)
                kept += taken
                released = -taken if forward_only else sum(size for size in changes if size < 0.0)
            elif numbering.kind(number) in shares:
                action = numbering.action(number)
                kept += shares[action.kind] * sizes[action.stage]
                released = 0.0
            else:
                continue
            if kept <= limit:
                kept += released
                continue
            raise problem(
                programs,
                rank,
                step,
                f"{numbering.text(number)} brings the activations kept to {kept:g}, and the limit is {memory:g}",
                "start fewer forwards before the next backward, or raise the limit",
            )
