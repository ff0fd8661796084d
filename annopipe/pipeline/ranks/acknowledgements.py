"""Which of a rank's messages have been taken for certain, read off the schedule.

A rank keeps the memory of what it sends until the receiver has it, and gloo does not say when that is. But every
message that comes back tells: its sender had by then computed with some of this rank's messages, and had asked for
those before them; messages between two ranks are carried in the order in which they are asked for.

    rank 0    0SEND_F0 0SEND_F1 .. 0RECV_B0            when the gradient of microbatch 0 is here,
    rank 1    1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1   the activations of microbatch 0 have been taken
"""

from collections.abc import Sequence
from typing import NamedTuple

from annopipe.scheduling.actions import Action
from annopipe.scheduling.placement import Placement

__all__ = ["Message", "acknowledged", "messages_of"]


class Message(NamedTuple):
    """What one stage hands to another: "F" or "B", the stages, the microbatch."""

    way: str
    source: int
    target: int
    microbatch: int


def messages_of(action: Action, placement: Placement) -> list[Message]:
    """The messages that a SEND or a RECV stands for, those of the first neighbour first; none for other actions.

    >>> from annopipe.scheduling import placement
    >>> messages_of(Action.parse("2RECV_F0"), placement.towers([0], [1], top=[2]))
    [Message(way='F', source=0, target=2, microbatch=0), Message(way='F', source=1, target=2, microbatch=0)]
    """
    if action.microbatch is None or not action.kind.startswith(("SEND_", "RECV_")):
        return []
    way, stage = action.kind[-1], action.stage
    sends = action.kind.startswith("SEND")
    neighbours = placement.successors if sends == (way == "F") else placement.predecessors
    apart = [other for other in neighbours[stage] if placement.rank_of[other] != placement.rank_of[stage]]
    ends = [(stage, other) if sends else (other, stage) for other in apart]
    return [Message(way, source, target, action.microbatch) for source, target in ends]


def acknowledged(ranks: Sequence[Sequence[Action]], placement: Placement, rank: int) -> dict[Message, int]:
    """For each message that a rank receives: how many of its own to that sender have been taken when it is there.

    >>> from annopipe.scheduling import placement, schedule
    >>> lowered = schedule("1f1b", ranks=2, microbatches=2).lowered()
    >>> found = acknowledged(lowered.ranks, lowered.placement, 0)
    >>> {tuple(message): taken for message, taken in found.items()}
    {('B', 1, 0, 0): 1, ('B', 1, 0, 1): 2}
    """
    sent: dict[int, dict[Message, int]] = {}
    for action in ranks[rank]:
        for message in messages_of(action, placement) if action.kind.startswith("SEND") else ():
            numbers = sent.setdefault(placement.rank_of[message.target], {})
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
    asked: set[int] = set()
    first_unasked = taken = 0
    for action in program:
        messages = messages_of(action, placement)
        if action.kind.startswith("RECV"):
            asked |= {numbers[message] for message in messages if message in numbers}
            while first_unasked in asked:
                first_unasked += 1
        elif action.kind.startswith("SEND"):
            found |= {message: taken for message in messages if placement.rank_of[message.target] == rank}
        for part in action.singles:
            for message in _used_by(part, placement):
                number = numbers.get(message, -1)
                if number < first_unasked:
                    taken = max(taken, number + 1)
    return found


def _used_by(part: Action, placement: Placement) -> list[Message]:
    """The messages that a forward, or the first half of a backward, computes with."""
    if part.microbatch is None or part.kind not in ("F", "B", "I"):
        return []
    way = "F" if part.kind == "F" else "B"
    sources = placement.predecessors if way == "F" else placement.successors
    return [Message(way, source, part.stage, part.microbatch) for source in sources[part.stage]]
