"""Rules on messages: each SEND has its RECV, stands behind what it sends, and its RECV in front of what needs it.

A schedule has all of its messages or, when it is not lowered yet, none.
"""

from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.own_order import in_order
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.numbering import BLOCKS
from annopipe.scheduling.routes import routes

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
                index = where.index(-1)
                text = facts.programs.numbering.text(facts.number(kind, stage, index))
                other = (route.receive, route.target) if kind == route.send else (route.send, route.source)
                partner = facts.programs.numbering.text(facts.number(*other, index))
                there = placement.rank_of[other[1]]
                done = facts.where[facts.number(*other, index)] >= 0
                raise problem(
                    facts.programs,
                    placement.rank_of[stage],
                    None,
                    f"{text} is missing, {'which' if done else 'and'} {partner} on rank {there} "
                    f"{'belongs to' if done else 'is missing, too'}",
                    "add it, or take compute_only() of the schedule and lower it",
                    also=[facts.place(facts.number(*other, index))] if done else [],
                )


def _none(facts: Facts, kind: str, stage: int, where: list[int]) -> None:
    if max(where, default=-1) < 0:
        return
    number = facts.number(kind, stage, next(index for index, position in enumerate(where) if position >= 0))
    way = "to" if kind.startswith("SEND") else "from"
    why = (
        f"there is no stage on another rank {way} which it goes" if way == "to" else "no stage on another rank sends it"
    )
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
