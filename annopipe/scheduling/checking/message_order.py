"""Rules on the order of messages between two ranks.

What one rank sends to another is taken in the order in which it is sent. For transports in which a send waits for its
receive, both ranks also have all messages between them, those of both directions, in one order.

Messages that must be told apart by stage and microbatch anyway (`Route.ordered`) are left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from operator import lt

from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.routes import Route, routes

__all__ = ["messages_arrive_in_order", "pairs_agree"]


def messages_arrive_in_order(facts: Facts) -> None:
    """Raise ScheduleError where a rank takes messages of another one in another order than they are sent."""
    _agree(facts, pairs=False)


def pairs_agree(facts: Facts) -> None:
    """Raise ScheduleError where two ranks do not have the messages between them in one order."""
    _agree(facts, pairs=True)


def _agree(facts: Facts, *, pairs: bool) -> None:
    if not facts.has_messages:
        return
    used = [route for route in routes(facts.programs.placement) if facts.has_backward or route.send == "SEND_F"]
    between: dict[tuple[int, int], list[Route]] = defaultdict(list)
    for route in filter(lambda route: route.ordered, used):
        ranks = route.sender, route.receiver
        between[(min(ranks), max(ranks)) if pairs else ranks].append(route)
    for (here, _), shared in between.items():
        _compare(facts, here, shared)


def _compare(facts: Facts, here: int, shared: Sequence[Route]) -> None:
    """Compare the order of the messages of some routes on rank `here` with that on the other rank."""
    ours: list[int] = []
    theirs: list[int] = []
    for route in shared:
        send, receive = facts.row(route.send, route.source), facts.row(route.receive, route.target)
        ours += send if route.sender == here else receive
        theirs += receive if route.sender == here else send
    order = sorted(range(len(ours)), key=ours.__getitem__)
    followed = [theirs[index] for index in order]
    if all(map(lt, followed, islice(followed, 1, None))):
        return
    # Several messages of one SEND or RECV are in the order of their routes.
    keys = list(zip(followed, order, strict=True))
    late = next((i for i in range(1, len(keys)) if keys[i] < keys[i - 1]), None)
    if late is None:
        return
    text = facts.programs.numbering.text
    places = [[facts.place_at(side[order[i]]) for i in (late - 1, late)] for side in (ours, theirs)]
    (first, second), (other_first, other_second) = (
        [text(facts.programs.ranks[rank][step]) for rank, step in side] for side in places
    )
    raise problem(
        facts.programs,
        *places[0][1],
        f"{second} comes behind {first}, and on rank {places[1][0][0]} {other_second} (step {places[1][1][1]}) in "
        f"front of {other_first} (step {places[1][0][1]})",
        "two ranks have their messages in one order; lowered() puts the messages in anew",
        also=[places[1][1], places[1][0]],
    )
