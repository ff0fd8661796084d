"""Rule for transports in which a send waits for its receive, and a rank does one message after the other.

One order for each pair of ranks (`pairs_agree`) is not enough for three ranks in a ring: each can wait for the next.
Messages that must be told apart by stage and microbatch anyway (`Route.ordered`) are left out, as there.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from annopipe.errors import ScheduleError
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.routes import routes

__all__ = ["messages_meet"]


def messages_meet(facts: Facts) -> None:
    """Raise ScheduleError where ranks wait for each other's messages in a ring."""
    if not facts.has_messages:
        return
    partners = _partners(facts)
    rank_at = [rank for rank, flat in enumerate(facts.flat) for _ in flat]
    queues: list[list[int]] = [[] for _ in facts.flat]  # of each rank, positions of its messages, the last one first
    for position in sorted(partners, reverse=True):
        queues[rank_at[position]].append(position)
    missing = {position: set(others) for position, others in partners.items()}
    ready = list(range(len(queues)))
    while ready:
        queue = queues[ready.pop()]
        while queue:
            position = queue[-1]
            for other in [other for other in missing[position] if queues[rank_at[other]][-1:] == [other]]:
                missing[position].discard(other)
                missing[other].discard(position)
                if not missing[other]:
                    queues[rank_at[other]].pop()
                    ready.append(rank_at[other])
            if missing[position]:
                break
            queue.pop()
    stopped = {rank: queue[-1] for rank, queue in enumerate(queues) if queue}
    if stopped:
        raise _error(facts, stopped, missing, rank_at)


def _partners(facts: Facts) -> Mapping[int, Sequence[int]]:
    """For the position of each SEND and RECV, those of its partners."""
    found: dict[int, list[int]] = defaultdict(list)
    for route in routes(facts.programs.placement):
        if route.ordered and (facts.has_backward or route.send == "SEND_F"):
            sends, receives = facts.row(route.send, route.source), facts.row(route.receive, route.target)
            for send, receive in zip(sends, receives, strict=True):
                found[send].append(receive)
                found[receive].append(send)
    return found


def _error(
    facts: Facts, stopped: Mapping[int, int], missing: Mapping[int, set[int]], rank_at: Sequence[int]
) -> ScheduleError:
    ring: list[int] = []
    rank = min(stopped)
    while rank not in ring:
        ring.append(rank)
        rank = rank_at[min(missing[stopped[rank]])]
    ring = ring[ring.index(rank) :]
    places = [facts.place_at(stopped[rank]) for rank in ring]
    waits = []
    for rank, step in places:
        other, at = facts.place_at(min(missing[stopped[rank]]))
        behind = facts.programs.text(*facts.place_at(stopped[other]))
        wanted = f"{facts.programs.text(other, at)} on rank {other}, step {at} behind {behind}"
        waits.append(f"rank {rank}, step {step}: {facts.programs.text(rank, step)} waits for {wanted}")
    return problem(
        facts.programs,
        *places[0],
        f"deadlock where a send waits for its receive, these wait for each other: {'; '.join(waits)}",
        "lowered() puts the messages in anew",
        also=places[1:],
    )
