"""Which SEND goes to which RECV: one route for each direction of an edge between stages on different ranks."""

from collections import Counter
from dataclasses import dataclass

from annopipe.scheduling.placement import Placement

__all__ = ["Route", "routes"]


@dataclass(frozen=True, slots=True)
class Route:
    """A way that the messages of all microbatches take.

    Attributes:
        send, receive: "SEND_F" and "RECV_F", or "SEND_B" and "RECV_B".
        source, target: the stages.
        sender, receiver: their ranks.
        senders: how many SENDs the target's RECV takes, this one among them.
        joins: it takes several, and each of these goes nowhere else.
    """

    send: str
    receive: str
    source: int
    target: int
    sender: int
    receiver: int
    senders: int
    joins: bool

    @property
    def ordered(self) -> bool:
        """Whether lowering can keep sends and receives in the same order on both ranks.

        It cannot where one RECV takes from several SENDs of which one also goes elsewhere (a connection that skips
        stages): such messages must be told apart by stage and microbatch.
        """
        return self.senders == 1 or self.joins


def routes(placement: Placement) -> tuple[Route, ...]:
    """All routes, forward ones first, each direction in ascending order of source and target.

    >>> from annopipe.scheduling import placement
    >>> [(route.send, route.source, route.target) for route in routes(placement.linear(2))]
    [('SEND_F', 0, 1), ('SEND_B', 1, 0)]
    """
    apart = [(a, b) for a, b in placement.edges if placement.rank_of[a] != placement.rank_of[b]]
    backward = [(b, a) for a, b in apart]
    found = []
    for send, receive, pairs in (("SEND_F", "RECV_F", apart), ("SEND_B", "RECV_B", backward)):
        leaving, arriving = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
        shared = {b for a, b in pairs if leaving[a] > 1}
        for a, b in sorted(pairs):
            joins = arriving[b] > 1 and b not in shared
            ranks = placement.rank_of[a], placement.rank_of[b]
            found.append(Route(send, receive, a, b, *ranks, arriving[b], joins))
    return tuple(found)
