"""A smaller problem for a search: what may as well run in one go becomes one node.

    mm -- relu -- mm -- launch .. wait -- mm        becomes        [mm relu mm] -- launch .. wait -- [mm]

needs       a problem with costs.
does        joins computation of one lane that needs the same transfers and that the same launches need, in pieces of
            at most a share of the lower bound, so that gaps can still be filled; launches and waits stay alone.
guarantees  an order of the small problem, written out, is an order of the whole one: what lies between two nodes of a
            piece needs what the first needs and is needed by what needs the second, so it is in the piece too.
"""

import dataclasses
import heapq
from collections.abc import Sequence

from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.problem import OverlapProblem

__all__ = ["Coarse", "coarsened"]


@dataclasses.dataclass(frozen=True)
class Coarse:
    """The small problem, and for each of its nodes the nodes that it stands for, in program order."""

    problem: OverlapProblem
    members: tuple[tuple[int, ...], ...]

    def written_out(self, order: Sequence[int]) -> list[int]:
        """An order of the small problem as one of the whole problem."""
        return [member for index in order for member in self.members[index]]


def coarsened(problem: OverlapProblem, share: float = 0.01) -> Coarse:
    """The small problem, its pieces at most ``share`` of the lower bound long where single nodes are shorter.

    >>> from annopipe.ordering.problem import OverlapNode
    >>> nodes = tuple(OverlapNode(i, f"n{i}", "r", "compute", "F", "") for i in range(3))
    >>> coarsened(OverlapProblem(nodes, ((), (0,), (1,)))).members
    ((0, 1, 2),)
    """
    pieces = _pieces(problem, share * lower_bound(problem))
    piece_of = {index: number for number, piece in enumerate(pieces) for index in piece}
    before = [
        {piece_of[source] for index in piece for source in problem.dependencies[index]} - {number}
        for number, piece in enumerate(pieces)
    ]
    order = _topological(before, [piece[0] for piece in pieces])
    place = {number: at for at, number in enumerate(order)}
    nodes = []
    for at, number in enumerate(order):
        first = problem.nodes[pieces[number][0]]
        cost = sum(problem.nodes[index].cost for index in pieces[number])
        launch = place[piece_of[first.launch]] if first.kind == "wait" else -1
        nodes.append(dataclasses.replace(first, index=at, cost=cost, launch=launch))
    dependencies = tuple(tuple(sorted(place[source] for source in before[number])) for number in order)
    small = dataclasses.replace(problem, nodes=tuple(nodes), dependencies=dependencies)
    return Coarse(small, tuple(tuple(pieces[number]) for number in order))


def _pieces(problem: OverlapProblem, longest: float) -> list[list[int]]:
    needs, needed_by = _transfers_around(problem)
    open_piece: dict[tuple[object, ...], int] = {}
    pieces: list[list[int]] = []
    seconds: list[float] = []
    for node in problem.nodes:
        key: tuple[object, ...] = (node.index,)
        if node.kind in ("compute", "host"):
            filler = "" if needed_by[node.index] else node.region  # what no launch needs may come at any time
            key = node.lane, needs[node.index], needed_by[node.index], filler
        number = open_piece.get(key, -1)
        if number < 0 or seconds[number] + node.cost > longest:
            number = open_piece[key] = len(pieces)
            pieces.append([])
            seconds.append(0.0)
        pieces[number].append(node.index)
        seconds[number] += node.cost
    return pieces


def _transfers_around(problem: OverlapProblem) -> tuple[list[int], list[int]]:
    """For each node, as bit sets: the waits that it needs, and the launches that need it."""
    needs, needed_by = [0] * len(problem.nodes), [0] * len(problem.nodes)
    for node in problem.nodes:
        for source in problem.dependencies[node.index]:
            needs[node.index] |= needs[source]
        if node.kind == "wait":
            needs[node.index] |= 1 << node.index
    for node in reversed(problem.nodes):
        for user in problem.successors[node.index]:
            needed_by[node.index] |= needed_by[user]
        if node.kind == "launch":
            needed_by[node.index] |= 1 << node.index
    return needs, needed_by


def _topological(before: Sequence[set[int]], rank: Sequence[int]) -> list[int]:
    after: list[list[int]] = [[] for _ in before]
    for number, sources in enumerate(before):
        for source in sources:
            after[source].append(number)
    missing = [len(sources) for sources in before]
    ready = [(rank[number], number) for number, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for user in after[number]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (rank[user], user))
    return order
