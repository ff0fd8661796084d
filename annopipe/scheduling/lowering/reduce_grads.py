"""Add REDUCE_GRAD: reduce a stage's gradients over its data-parallel group when they are complete.

Needs       programs without REDUCE_GRAD.
Does        writes REDUCE_GRAD behind the last B or W of each stage.
Guarantees  one for each stage that has a B or W; everything else stays in its order.

    0F0 0F1 0B0 0B1   ->   0F0 0F1 0B0 0B1 0REDUCE_GRAD
"""

from annopipe.scheduling.lowering.uses import Uses, refuse_kinds, with_kind
from annopipe.scheduling.programs import Programs

__all__ = ["add_reduce_grads"]


def add_reduce_grads(programs: Programs) -> Programs:
    """The same programs with REDUCE_GRAD behind the last backward of each stage.

    Raises ScheduleError for REDUCE_GRAD that is there already.

    >>> from annopipe.scheduling import placement
    >>> add_reduce_grads(Programs.of(placement.linear(1), 2, [["0F0", "0I0", "0F1", "0B1", "0W0"]])).texts()
    [['0F0', '0I0', '0F1', '0B1', '0W0', '0REDUCE_GRAD']]
    """
    refuse_kinds(programs, "REDUCE_GRAD")
    numbering, reduce_grad = with_kind(programs, "REDUCE_GRAD")
    uses = Uses(programs, ("B", "W"))
    ranks = []
    for held, program in zip(programs.placement.stages_on, programs.ranks, strict=True):
        due = set(held)
        found: list[int] = []
        for number in reversed(program):
            if due:
                ended = [stage for stage in dict.fromkeys(uses(number)) if stage in due]
                found += [reduce_grad[stage] for stage in reversed(ended)]
                due.difference_update(ended)
            found.append(number)
        ranks.append(found[::-1])
    return Programs.numbered(programs.placement, numbering, ranks)
