"""Which action uses a message, and which message an action waited for.

A timeline says when messages arrive and when actions run, not who needs whom. A message `2SEND_F5` is used by a forward
of microbatch 5 on the receiver, `3SEND_B5` by a backward of it: the one of the neighbouring stage, or else, in a graph
of stages that is no chain, the first that starts after the arrival.
"""

import re
from collections.abc import Sequence

from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import Message

__all__ = ["Place", "sent_action", "users", "waits"]

_SENT = re.compile(r"(\d+)SEND_([FB])(\d+)")
_ROUNDING = 1e-9
_Key = tuple[int, str, int]  # rank, direction, microbatch
Place = tuple[int, int]  # rank, and the how-manieth of its spans


def sent_action(message: Message) -> tuple[int, str, int] | None:
    """What a message carries: the sending stage, "F" for activations or "B" for gradients, and the microbatch.

    >>> sent_action(Message("3SEND_B0", sender=3, receiver=2, start=0.0, sent=0.0, arrival=0.0))
    (3, 'B', 0)
    """
    match = _SENT.fullmatch(message.text)
    return (int(match[1]), match[2], int(match[3])) if match else None


def users(timeline: Pictured, looks: Looks) -> list[Place | None]:
    """For each message which span uses it; None where there is none."""
    candidates: dict[_Key, list[tuple[int, float, Place]]] = {}  # each with its stage and its start
    for rank, row in enumerate(timeline.spans):
        for at, span in enumerate(row):
            for piece in looks.pieces(timeline, span):
                if piece.microbatch is not None and piece.kind in ("F", "B", "I"):
                    key = (rank, "F" if piece.kind == "F" else "B", piece.microbatch)
                    candidates.setdefault(key, []).append((piece.stage, span.start, (rank, at)))
    tolerance = _ROUNDING * timeline.makespan
    return [_user(message, candidates, tolerance) for message in timeline.messages]


def waits(timeline: Pictured, used_by: Sequence[Place | None]) -> dict[Place, Message]:
    """The message that each span with a pause before it waited for."""
    latest: dict[Place, Message] = {}
    for message, place in zip(timeline.messages, used_by, strict=True):
        if place is not None and (place not in latest or latest[place].arrival < message.arrival):
            latest[place] = message
    tolerance = _ROUNDING * timeline.makespan
    rows = timeline.spans
    found: dict[Place, Message] = {}
    for (rank, at), message in latest.items():
        free = rows[rank][at - 1].end if at else 0.0
        if min(rows[rank][at].start, message.arrival) > free + tolerance:
            found[rank, at] = message
    return found


def _user(message: Message, candidates: dict[_Key, list[tuple[int, float, Place]]], tolerance: float) -> Place | None:
    action = sent_action(message)
    if action is None:
        return None
    stage, direction, microbatch = action
    found = candidates.get((message.receiver, direction, microbatch), [])
    later = [(own, place) for own, start, place in found if start >= message.arrival - tolerance]
    neighbour = stage + 1 if direction == "F" else stage - 1
    return next((place for own, place in later if own == neighbour), later[0][1] if later else None)
