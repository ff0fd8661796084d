"""Which action uses a message, and which message an action waited for.

A timeline says when messages arrive and when actions run, not who needs whom. A message `2SEND_F5` is used by a forward
of microbatch 5 on the receiver, `3SEND_B5` by a backward of it: the one of the neighbouring stage, or else, in a graph
of stages that is no chain, the first that starts after the arrival.
"""

import re
from collections.abc import Sequence

from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import Message, RankSpan

__all__ = ["users", "waits"]

_SENT = re.compile(r"(\d+)SEND_([FB])(\d+)")
_ROUNDING = 1e-9
_Key = tuple[int, str, int]  # rank, direction, microbatch


def users(timeline: Pictured, looks: Looks) -> list[RankSpan | None]:
    """For each message the span that uses it, None where there is none."""
    candidates: dict[_Key, list[tuple[int, RankSpan]]] = {}
    for rank, row in enumerate(timeline.spans):
        for span in row:
            for piece in looks.pieces(timeline, span):
                if piece.microbatch is not None and piece.kind in "FBI":
                    key = (rank, "F" if piece.kind == "F" else "B", piece.microbatch)
                    candidates.setdefault(key, []).append((piece.stage, span))
    tolerance = _ROUNDING * timeline.makespan
    return [_user(message, candidates, tolerance) for message in timeline.messages]


def waits(timeline: Pictured, used_by: Sequence[RankSpan | None]) -> dict[int, Message]:
    """The message that each span with a pause before it waited for, by `id` of the span."""
    latest: dict[int, Message] = {}
    for message, span in zip(timeline.messages, used_by, strict=True):
        if span is not None and (id(span) not in latest or latest[id(span)].arrival < message.arrival):
            latest[id(span)] = message
    tolerance = _ROUNDING * timeline.makespan
    found: dict[int, Message] = {}
    for row in timeline.spans:
        before = 0.0
        for span in row:
            arrived = latest.get(id(span))
            if arrived is not None and span.start > before + tolerance and arrived.arrival > before + tolerance:
                found[id(span)] = arrived
            before = span.end
    return found


def _user(message: Message, candidates: dict[_Key, list[tuple[int, RankSpan]]], tolerance: float) -> RankSpan | None:
    match = _SENT.fullmatch(message.text)
    if not match:
        return None
    stage, direction, microbatch = int(match[1]), match[2], int(match[3])
    found = candidates.get((message.receiver, direction, microbatch), [])
    later = [(own, span) for own, span in found if span.start >= message.arrival - tolerance]
    neighbour = stage + 1 if direction == "F" else stage - 1
    return next((span for own, span in later if own == neighbour), later[0][1] if later else None)
