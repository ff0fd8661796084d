"""What happened when, on many ranks: the plain data that pictures, tables and traces of a schedule are made from."""

import re
from dataclasses import dataclass

__all__ = ["Message", "RankSpan"]

_KIND = re.compile(r"[A-Z_]+")


@dataclass(frozen=True, slots=True)
class RankSpan:
    """One action on the computation of one rank.

    Attributes:
        rank: which rank.
        text: the action, such as "2F0".
        kind: "F", "B", "I", "W", "OVERLAP_F_B", "OVERLAP", "UNSHARD", or an operation that a user added.
        start, end: seconds from the start of the step.
        stage, microbatch: of the action; of the first part of a combination; microbatch is None where there is none.
        chunk: the how-manieth stage of its rank, for shades of colour.
        parts: the texts of what a combination runs together.
    """

    rank: int
    text: str
    kind: str
    start: float
    end: float
    stage: int
    microbatch: int | None
    chunk: int = 0
    parts: tuple[str, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of what runs in it.

        >>> sorted(RankSpan(0, "(0F1;1B0)OVERLAP_F_B", "OVERLAP_F_B", 0.0, 1.0, 0, 1, parts=("0F1", "1B0")).kinds)
        ['B', 'F']
        """
        return frozenset(kind for part in self.parts for kind in _KIND.findall(part)) or frozenset((self.kind,))


@dataclass(frozen=True, slots=True)
class Message:
    """One message between two ranks.

    Attributes:
        text: the sending action, such as "2SEND_F0".
        sender, receiver: the ranks.
        start, sent, arrival: when the link takes it, when the link is free again, and when it can be used.
    """

    text: str
    sender: int
    receiver: int
    start: float
    sent: float
    arrival: float
