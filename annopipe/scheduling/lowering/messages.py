"""Add the messages between ranks.

Needs       programs without messages that pass the check: every rank's order can be executed.
Does        runs the programs in order, one action a rank and tick (parameter actions take no tick), and at the end of
            each tick writes the messages of what has run: SEND to the rank that ran it, RECV to the rank that needs it.
            The messages of a combination's parts follow the combination. Between stages on one rank there are none.
Guarantees  For each pair of ranks both have their messages in one order (`Route.ordered` says where that cannot be), so
            transports in which a send waits for its receive are safe. A RECV stands as early as that order allows.
            Everything else stays in its order, and the next tick is no later than without messages.

    rank 0: 0F0 0F1 0B0 0B1        ->   0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    rank 1: 1F0 1B0 1F1 1B1             1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1

Where one RECV takes from several SENDs, it stands where the last of them is ready; with `rendezvous` the SENDs stand
there, too. Without it they stand behind what they send, and their order is guaranteed no longer.
"""

from collections import Counter

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import PARAMETERS
from annopipe.scheduling.checking.deadlock import deadlock_error
from annopipe.scheduling.dependencies import SEVERAL, dependencies, waits
from annopipe.scheduling.numbering import BLOCKS, Numbering
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.routes import Route, routes

__all__ = ["add_messages"]

_Row = tuple[int, tuple[tuple[int, Route], ...]]
_END = -1


def add_messages(programs: Programs, *, rendezvous: bool = True) -> Programs:
    """The same programs with SEND and RECV of activations and gradients.

    `rendezvous`: keep one order for each pair of ranks also where a RECV takes from several SENDs; without it, these
    SENDs stand directly behind what they send.

    Raises ScheduleError when there are messages already, or when ranks wait for each other.

    >>> from annopipe.scheduling import placement
    >>> add_messages(Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])).texts()
    [['0F0', '0SEND_F0', '0RECV_B0', '0B0'], ['1RECV_F0', '1F0', '1B0', '1SEND_B0']]
    """
    numbering = programs.numbering
    first, base = numbering.first("SEND_F"), numbering.base
    for rank, program in enumerate(programs.ranks):
        found = next((step for step, n in enumerate(program) if first <= n < base), None)
        if found is not None:
            raise ScheduleError(
                f"rank {rank}, step {found}: {numbering.text(program[found])} is there already; take compute_only() "
                "of the schedule, which drops messages, before it is lowered again"
            )
    posts = _Posts(programs, rendezvous=rendezvous)
    stopped = _ticks(programs, posts)
    if stopped:
        raise deadlock_error(programs, stopped)
    return Programs(programs.placement, numbering, tuple(map(tuple, posts.out)))


class _Posts:
    """Writes the messages of what has run.

    Attributes:
        out: the programs so far.
        rows: by row (number // microbatches) of what has run, how far its SEND is, and each RECV with its distance.
    """

    def __init__(self, programs: Programs, *, rendezvous: bool) -> None:
        self.out: list[list[int]] = [[] for _ in programs.ranks]
        self.rows: list[_Row | None] = [None] * (len(BLOCKS) * programs.placement.stages)
        self._microbatches = programs.microbatches
        self._rendezvous = rendezvous
        self._ready: Counter[int] = Counter()  # how many of the SENDs of a RECV are ready
        self._held: dict[int, list[tuple[int, int]]] = {}  # SENDs (number, rank) that wait for the others of a RECV
        numbering = programs.numbering
        for route in routes(programs.placement):
            for kind in ("F",) if route.send == "SEND_F" else ("B", "I"):
                first = numbering.first(kind, route.source)
                row = first // programs.microbatches
                send = numbering.first(route.send, route.source) - first
                receive = numbering.first(route.receive, route.target) - first
                _, others = self.rows[row] or (send, ())
                self.rows[row] = send, (*others, (receive, route))

    def post(self, rank: int, number: int) -> None:
        """Write the messages of an action that has run."""
        send, receives = self.rows[number // self._microbatches] or (0, ())
        if not (self._rendezvous and receives[0][1].joins):
            self.out[rank].append(number + send)
        for distance, route in receives:
            if route.senders == 1:
                self.out[route.receiver].append(number + distance)
            else:
                self._join(route, number + distance, (number + send, rank))

    def _join(self, route: Route, receive: int, send: tuple[int, int]) -> None:
        """Note that one of several SENDs of a RECV is ready; the last one writes the RECV, and the SENDs held."""
        self._ready[receive] += 1
        if self._rendezvous and route.joins:
            self._held.setdefault(receive, []).append(send)
        if self._ready[receive] == route.senders:
            # A RECV takes what comes from one rank in ascending order of stages.
            for number, rank in sorted(self._held.pop(receive, ())):
                self.out[rank].append(number)
            self.out[route.receiver].append(receive)


def _ticks(programs: Programs, posts: _Posts) -> dict[int, tuple[int, int]]:
    """Run the programs; the step of each rank that cannot go on, and what it waits for."""
    numbering, m, block = programs.numbering, programs.microbatches, programs.numbering.block
    parts, silent = numbering.parts, _parameter_actions(numbering)
    tables = dependencies(programs.placement, numbering)
    ends, (needs, several) = tables.ends, waits(tables, parts, m)
    # done[-1]: nothing to wait for; done[SEVERAL]: look it up.
    done = [False] * (len(needs) + 1) + [True]
    waiting: dict[int, list[int]] = {}  # ranks by the number that they wait for
    ranks, out, posted = [(*program, _END) for program in programs.ranks], posts.out, posts.rows
    at = [0] * len(ranks)
    active = list(range(len(ranks)))
    while active:
        ran = []
        for rank in active:
            number = ranks[rank][at[rank]]
            while number in silent:
                out[rank].append(number)
                at[rank] += 1
                number = ranks[rank][at[rank]]
            if number == _END:
                continue
            needed = needs[number]
            if not done[needed]:
                if needed == SEVERAL:
                    needed = next((n for n in several[number] if not done[n]), -1)
                if needed >= 0:
                    waiting.setdefault(needed, []).append(rank)
                    continue
            out[rank].append(number)
            ran.append(rank)
        active, gradients = ran.copy(), []
        # Forwards go up the ranks in most placements, gradients down: so ordered, a rank's SEND is in front of RECVs.
        for rank in reversed(ran):
            number = ranks[rank][at[rank]]
            at[rank] += 1
            for part in parts.get(number, (number,)):
                ended = ends[part]
                done[ended] = True
                if ended in waiting:
                    active += waiting.pop(ended)
                if posted[part // m]:
                    if part < block:
                        posts.post(rank, part)
                    else:
                        gradients.append((rank, part))
        for rank, part in reversed(gradients):
            posts.post(rank, part)
        active.sort()
    return {rank: (at[rank], needed) for needed, stopped in waiting.items() for rank in stopped}


def _parameter_actions(numbering: Numbering) -> frozenset[int]:
    return frozenset(n for n, action in enumerate(numbering.extras, numbering.base) if action.kind in PARAMETERS)
