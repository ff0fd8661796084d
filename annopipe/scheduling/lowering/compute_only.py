"""Drop what lowering added.

Needs       any programs.
Does        removes SEND and RECV of activations and gradients, UNSHARD, RESHARD and REDUCE_GRAD.
Guarantees  F, B, I, W, combinations and operations of users stay, in their order; lowering the result starts afresh.

    0UNSHARD 0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD   ->   0F0 0B0
"""

from annopipe.scheduling.actions import PARAMETERS
from annopipe.scheduling.programs import Programs

__all__ = ["compute_only"]


def compute_only(programs: Programs) -> Programs:
    """The same programs without messages and without parameter actions.

    >>> from annopipe.scheduling import placement
    >>> compute_only(Programs.of(placement.linear(1), 1, [["0UNSHARD", "0F0", "0B0", "0RESHARD"]])).texts()
    [['0F0', '0B0']]
    """
    numbering = programs.numbering
    first, base = numbering.first("SEND_F"), numbering.base
    kept = {n for n, action in enumerate(numbering.extras, base) if action.kind not in PARAMETERS}
    ranks = [[n for n in program if n < first or n in kept] for program in programs.ranks]
    return Programs.numbered(programs.placement, numbering, ranks)
