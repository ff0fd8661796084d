"""All passes of lowering, in order: from what is computed to what a rank does.

Needs       programs that pass the check, with messages and parameter actions or without; those that are there go.
Does        UNSHARD, RESHARD, REDUCE_GRAD (with `parameters`), then SEND and RECV.
Guarantees  the result passes the check, computes the same in the same order, and lowering it again gives the same.
"""

from annopipe.scheduling.actions import MESSAGES, PARAMETERS
from annopipe.scheduling.lowering.compute_only import compute_only
from annopipe.scheduling.lowering.messages import add_messages
from annopipe.scheduling.lowering.reduce_grads import add_reduce_grads
from annopipe.scheduling.lowering.unshards import add_reshards, add_unshards
from annopipe.scheduling.programs import Programs

__all__ = ["lower", "with_messages"]


def lower(programs: Programs, *, parameters: bool = False, max_active: int = 3, rendezvous: bool = True) -> Programs:
    """The programs with messages between ranks and, when asked for, parameter actions.

    Args:
        programs: what every rank does.
        parameters: add UNSHARD, RESHARD and REDUCE_GRAD, for parameters that are sharded over data-parallel ranks.
        max_active: how many stages of a rank may be unsharded at a time.
        rendezvous: see `add_messages`.

    Raises ScheduleError when ranks wait for each other.

    >>> from annopipe.scheduling import placement
    >>> both = Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> lower(both, parameters=True).texts()[1]
    ['1UNSHARD', '1RECV_F0', '1F0', '1B0', '1SEND_B0', '1REDUCE_GRAD', '1RESHARD']
    """
    found = compute_only(programs)
    if parameters:
        found = add_unshards(found, max_active=max_active)
        found = add_reshards(found)
        found = add_reduce_grads(found)
    return add_messages(found, rendezvous=rendezvous)


def with_messages(programs: Programs) -> Programs:
    """The programs with messages; those that say when parameters are gathered and reduced stay as they are otherwise.

    Raises ScheduleError when ranks wait for each other.

    >>> from annopipe.scheduling import placement
    >>> with_messages(Programs.of(placement.linear(2), 1, [["0UNSHARD", "0F0", "0B0"], ["1F0", "1B0"]])).texts()
    [['0UNSHARD', '0F0', '0SEND_F0', '0RECV_B0', '0B0'], ['1RECV_F0', '1F0', '1B0', '1SEND_B0']]
    """
    kinds = {programs.numbering.kind(number) for program in programs.ranks for number in program}
    if kinds.isdisjoint(PARAMETERS):
        return lower(programs)
    return add_messages(programs) if kinds.isdisjoint(MESSAGES) else programs
