"""From a pattern and a problem to an order.

Each layer takes the steps from the first to the last; layer 0 of every lane comes in the first round, and a lane that
has no more layers is skipped, so lanes may have different numbers of layers. In a step, pieces that communicate are
issued first, up to their last launch; the others compute beside it. Weight gradients of the last step are issued
behind the launches of the next layer's first step, since they need not hold these up.

What the pattern does not say follows from what is needed: a node of no piece (a router, a norm), a wait, and what a
piece computes with the result of its own transfer come just before the first node that needs them; a node that nothing
needs comes behind its last input.

The pattern is a wish: what an earlier piece needs comes with it, unless it is a launch; then the earlier piece comes as
soon as it can.
"""

import dataclasses
import math
from collections.abc import Iterable

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.host_reads import counts_early, counts_together
from annopipe.ordering.patterns.matching import Match, match
from annopipe.ordering.patterns.text import Pattern
from annopipe.ordering.problem import OverlapProblem

__all__ = ["apply", "with_lanes"]

_Key = tuple[float, int, int]  # round and step; 0: communicates, 1: computes; place in the step
_END: _Key = (math.inf, 0, 0)
_START: _Key = (-1.0, 0, 0)


def apply(problem: OverlapProblem, pattern: Pattern, *, optional: bool = False, carries_on: bool = False) -> list[int]:
    """The order that a pattern means.

    Args:
        optional: pieces that mean nothing in this problem are skipped rather than refused.
        carries_on: the last step runs beside the first one of the next layer.

    Raises:
        PatternError: a piece names a lane or a region that is not there.
    """
    matches = match(problem, pattern, optional=optional)
    keys = _piece_keys(problem, pattern, matches, rounds=len(pattern.steps) - carries_on)
    _fill_in(problem, keys)
    rank = [0.0] * len(problem.nodes)
    for place, index in enumerate(sorted(keys, key=lambda index: (keys[index], index))):
        rank[index] = float(place)
    order = counts_early(problem, counts_together(problem, problem.topological(rank)))
    return waits_late(problem, order)


def _piece_keys(problem: OverlapProblem, pattern: Pattern, matches: dict[int, Match], rounds: int) -> dict[int, _Key]:
    """The keys of the nodes that the pattern places; a layer has so many rounds."""
    members: dict[Match, list[int]] = {}
    for index, found in matches.items():
        members.setdefault(found, []).append(index)
    places = {p: (step, at) for step, pieces in enumerate(pattern.steps) for at, p in enumerate(pieces)}
    keys: dict[int, _Key] = {}
    for found, indices in members.items():
        step, at = places[found.piece]
        communicates = any(problem.nodes[index].kind == "launch" for index in indices)
        if step == rounds or (found.piece.weights and step == len(pattern.steps) - 1):
            step, at = rounds, at - len(pattern.pieces)
        key = float(found.layer * rounds + step), int(not communicates), at
        keys.update(dict.fromkeys(_issued(problem, indices, communicates=communicates), key))
    return keys


def _issued(problem: OverlapProblem, indices: Iterable[int], *, communicates: bool) -> list[int]:
    """The nodes of a piece that its step issues: all but waits, and not what comes after its last launch's wait."""
    own = sorted(indices)
    if not communicates:
        return [index for index in own if problem.nodes[index].kind != "wait"]
    needed = {index for index in own if problem.nodes[index].kind == "launch"}
    for index in reversed(own):
        if index in needed:
            needed.update(source for source in problem.dependencies[index])
    arrived: set[int] = set()
    for index in own:
        node = problem.nodes[index]
        if index not in needed and (node.kind == "wait" or not arrived.isdisjoint(problem.dependencies[index])):
            arrived.add(index)
    return [index for index in own if index not in arrived and problem.nodes[index].kind != "wait"]


def _fill_in(problem: OverlapProblem, keys: dict[int, _Key]) -> None:
    """Keys for the other nodes, from what needs them, else from what they need."""
    without: list[int] = []
    for node in reversed(problem.nodes):
        needed = min((keys[user] for user in problem.successors[node.index] if user in keys), default=None)
        if node.index not in keys:
            if needed is None:
                without.append(node.index)
            else:
                keys[node.index] = needed
        elif needed is not None and node.kind != "launch":
            keys[node.index] = min(keys[node.index], needed)
    for index in reversed(without):  # in program order, inputs first
        if problem.nodes[index].kind == "wait":
            keys[index] = _END
        else:
            keys[index] = max((keys[source] for source in problem.dependencies[index]), default=_START)


def with_lanes(pattern: Pattern, lanes: dict[str, tuple[str, ...]]) -> Pattern:
    """The pattern with each of its lanes replaced by the lanes of a problem that play its part, side by side."""
    steps = [
        tuple(dataclasses.replace(piece, lane=lane) for piece in step for lane in lanes.get(piece.lane, ()))
        for step in pattern.steps
    ]
    return Pattern(tuple(step for step in steps if step))
