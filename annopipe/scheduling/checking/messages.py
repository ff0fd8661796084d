"""Rules on messages: each SEND has its RECV, stands behind what it sends, and its RECV in front of what needs it.

A schedule has all of its messages or, when it is not lowered yet, none.
"""

from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.own_order import in_order
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.numbering import BLOCKS
from annopipe.scheduling.routes import Route, routes

__all__ = ["messages_in_place", "messages_match"]

_MESSAGES = BLOCKS[4:]


def messages_match(facts: Facts) -> None:
    """Raise ScheduleError for a message that is missing, or that goes to no other rank."""
    if not facts.has_messages:
        return
    placement = facts.programs.placement
    used = {(route.send, route.source): route for route in routes(placement)}
    used |= {(route.receive, route.target): route for route in routes(placement)}
    for stage in range(placement.stages):
        for kind in _MESSAGES:
            where = facts.row(kind, stage)
            route = used.get((kind, stage))
            if route is None or (kind.endswith("B") and not facts.has_backward):
                _none(facts, kind, stage, where)
            elif -1 in where:
                _missing(facts, kind, stage, where.index(-1), route)


def _missing(facts: Facts, kind: str, stage: int, index: int, route: Route) -> None:
    text = facts.programs.numbering.text
    other = (route.receive, route.target) if kind == route.send else (route.send, route.source)
    partner = facts.number(*other, index)
    done = facts.where[partner] >= 0
    beside = f"the partner of {text(partner)} on rank {facts.programs.placement.rank_of[other[1]]}"
    raise problem(
        facts.programs,
        facts.programs.placement.rank_of[stage],
        None,
        f"{text(facts.number(kind, stage, index))} is missing, {beside if done else 'while other messages are there'}",
        "add it, or have lowered() put the messages in anew",
        also=[facts.place(partner)] if done else [],
    )


def _none(facts: Facts, kind: str, stage: int, where: list[int]) -> None:
    if max(where, default=-1) < 0:
        return
    number = facts.number(kind, stage, next(index for index, position in enumerate(where) if position >= 0))
    why = "no stage on another rank takes it" if kind.startswith("SEND") else "no stage on another rank sends it"
    if kind.endswith("B") and not facts.has_backward:
        why = "the schedule has no backward"
    raise problem(
        facts.programs,
        *facts.place(number),
        f"{facts.programs.numbering.text(number)} has no partner: {why}",
        "drop it",
    )


def messages_in_place(facts: Facts) -> None:
    """Raise ScheduleError for a SEND in front of what it sends, or a RECV behind what needs it."""
    if not facts.has_messages:
        return
    sent, received = "it can only send what is computed", "it has to be posted before it is waited for"
    for stage in range(facts.programs.placement.stages):
        pairs = [("F", facts.row("F", stage))]
        if facts.has_backward:
            pairs.append(("B", facts.backward(stage)))
        for kind, computed in pairs:
            send, receive = facts.row(f"SEND_{kind}", stage), facts.row(f"RECV_{kind}", stage)
            if max(send, default=-1) >= 0:
                in_order(facts, ((kind, stage, computed), (f"SEND_{kind}", stage, send)), sent)
            if max(receive, default=-1) >= 0:
                in_order(facts, ((f"RECV_{kind}", stage, receive), (kind, stage, computed)), received)
