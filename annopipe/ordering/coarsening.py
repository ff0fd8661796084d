"""A smaller problem for a search: what may as well run in one go becomes one node.

    mm -- relu -- mm -- launch .. wait -- mm        becomes        [mm relu mm] -- launch .. wait -- [mm]

needs       a problem with costs.
does        joins computation of one lane that needs the same transfers and that the same launches need, in pieces of
            at most a share of the lower bound, so that gaps can still be filled; launches and waits stay alone.
guarantees  an order of the small problem, written out, is an order of the whole one: a node only joins a piece if all
            that it depends on is in that piece or in earlier ones.
"""

import dataclasses
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
    nodes, dependencies = [], []
    for number, piece in enumerate(pieces):
        first = problem.nodes[piece[0]]
        cost = sum(problem.nodes[index].cost for index in piece)
        launch = piece_of[first.launch] if first.kind == "wait" else -1
        nodes.append(dataclasses.replace(first, index=number, cost=cost, launch=launch))
        before = {piece_of[source] for index in piece for source in problem.dependencies[index]} - {number}
        dependencies.append(tuple(sorted(before)))
    small = dataclasses.replace(problem, nodes=tuple(nodes), dependencies=tuple(dependencies))
    return Coarse(small, tuple(tuple(piece) for piece in pieces))


def _pieces(problem: OverlapProblem, longest: float) -> list[list[int]]:
    """The pieces; every dependency is within a piece or on an earlier one, so that they cannot need each other."""
    needs, needed_by = _transfers_around(problem)
    open_piece: dict[tuple[object, ...], int] = {}
    pieces: list[list[int]] = []
    seconds: list[float] = []
    piece_of: list[int] = []
    for node, earlier in zip(problem.nodes, problem.dependencies, strict=True):
        key: tuple[object, ...] = (node.index,)
        if node.kind in ("compute", "host"):
            filler = "" if needed_by[node.index] else node.region  # what no launch needs may come at any time
            key = node.lane, needs[node.index], needed_by[node.index], filler
        number = open_piece.get(key, -1)
        latest = max((piece_of[source] for source in earlier), default=-1)
        if number < latest or number < 0 or seconds[number] + node.cost > longest:
            number = open_piece[key] = len(pieces)
            pieces.append([])
            seconds.append(0.0)
        pieces[number].append(node.index)
        seconds[number] += node.cost
        piece_of.append(number)
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
