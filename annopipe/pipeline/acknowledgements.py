"""Which of a rank's messages have been taken for certain, read off the schedule.

A rank keeps the memory of what it sends until the receiver has it, and gloo does not say when that is. But every
message that comes back tells: its sender had by then computed with some of this rank's messages, and those between two
ranks are sent, asked for and carried in one order.

    rank 0    0SEND_F0 0SEND_F1 .. 0RECV_B0            when the gradient of microbatch 0 is here,
    rank 1    1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1   the activations of microbatch 0 have been taken
"""

from collections.abc import Sequence

from annopipe.scheduling.actions import Action
from annopipe.scheduling.placement import Placement

__all__ = ["Message", "acknowledged"]

Message = tuple[str, int, int]  # "F" or "B", the receiving stage, the microbatch


def acknowledged(ranks: Sequence[Sequence[Action]], placement: Placement, rank: int) -> dict[Message, int]:
    """For each message that a rank receives: how many of its own to that sender have been taken when it is there.

    >>> from annopipe.scheduling import placement, schedule
    >>> lowered = schedule("1f1b", ranks=2, microbatches=2).lowered()
    >>> acknowledged(lowered.ranks, lowered.placement, 0)
    {('B', 0, 0): 1, ('B', 0, 1): 2}
    """
    sent: dict[int, dict[Message, int]] = {}
    for action in ranks[rank]:
        message = _sent_by(action)
        if message is not None:
            numbers = sent.setdefault(placement.rank_of[message[1]], {})
            numbers[message] = len(numbers)
    return {
        message: taken
        for peer, numbers in sent.items()
        for message, taken in _of_peer(ranks[peer], placement, rank, numbers).items()
    }


def _of_peer(
    program: Sequence[Action], placement: Placement, rank: int, numbers: dict[Message, int]
) -> dict[Message, int]:
    found: dict[Message, int] = {}
    taken = 0
    for action in program:
        for part in action.parts or (action,):
            if part.kind in ("F", "B", "I") and part.microbatch is not None:
                message = ("F" if part.kind == "F" else "B", part.stage, part.microbatch)
                # Messages between two ranks arrive in order: with this one, all before it.
                taken = max(taken, numbers.get(message, -1) + 1)
        message_back = _sent_by(action)
        if message_back is not None and placement.rank_of[message_back[1]] == rank:
            found[message_back] = taken
    return found


def _sent_by(action: Action) -> Message | None:
    """The message that an action of a chain of stages sends."""
    if action.microbatch is None or action.kind not in ("SEND_F", "SEND_B"):
        return None
    forward = action.kind == "SEND_F"
    return ("F" if forward else "B", action.stage + (1 if forward else -1), action.microbatch)
