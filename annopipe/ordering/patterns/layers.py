"""To which layer each node that a pattern names belongs.

Layers are told apart by the first component in which the paths of one piece differ ("block3" in
"stage/block3/moe/dispatch"), counted in the lane's program order, so a backward counts from the last block. Lanes of
one graph, its nano-batches, count together: where the first block has no experts, theirs begin with layer 1. A model
that tags every layer alike ("attention", "dispatch", "attention", ...) has a new layer wherever the lane's first piece
comes again after all the others have.
"""

import dataclasses
import graphlib
import statistics
from collections.abc import Callable, Iterable, Sequence

from annopipe.ordering.patterns.text import Piece

__all__ = ["LaneMatches", "layers_of"]

_Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LaneMatches:
    """What a pattern names of one lane.

    order: the lane's nodes, in program order.
    found: for those that a piece means: the piece, and the components of the region's path before the match.
    """

    order: list[int]
    found: dict[int, tuple[Piece, _Path]]


def layers_of(lanes: Sequence[LaneMatches]) -> dict[int, int]:
    """The layer, counted from 0, of every node that a pattern names; for the lanes of one graph."""
    depth = _layer_depth([found for lane in lanes for found in lane.found.values()])
    numbers = {} if depth is None else _numbered([_layers_in_order(lane, depth) for lane in lanes])
    layers: dict[int, int] = {}
    for lane in lanes:
        layer_of = _by_repetition(lane) if depth is None else _by_component(lane, depth, numbers)
        layers.update({index: layer_of(index) for index in lane.found})
    return layers


def _layer_depth(found: Iterable[tuple[Piece, _Path]]) -> int | None:
    """How many components tell layers apart; None when no piece occurs under different paths."""
    prefixes: dict[str, set[_Path]] = {}
    for piece, prefix in found:
        prefixes.setdefault(piece.region, set()).add(prefix)
    depths = []
    for paths in prefixes.values():
        if len(paths) > 1:
            shortest = min(len(path) for path in paths)
            same = [len({path[at] for path in paths}) == 1 for at in range(shortest)]
            depths.append((same.index(False) if False in same else shortest) + 1)
    return min(depths, default=None)


def _layers_in_order(lane: LaneMatches, depth: int) -> list[_Path]:
    """The layers of a lane, as paths up to ``depth``, in the order of the middles of their nodes.

    Not of their first nodes: a backward begins with views and the like of all layers.
    """
    members: dict[_Path, list[int]] = {}
    for place, index in enumerate(lane.order):
        if index in lane.found and len(prefix := lane.found[index][1][:depth]) == depth:
            members.setdefault(prefix, []).append(place)
    return sorted(members, key=lambda prefix: statistics.median_low(members[prefix]))


def _numbered(lanes: Iterable[list[_Path]]) -> dict[_Path, int]:
    """One number for every layer, rising in each lane; by first appearance where lanes have them in other orders."""
    after: dict[_Path, list[_Path]] = {}
    for layers in lanes:
        for place, layer in enumerate(layers):
            after.setdefault(layer, []).extend(layers[place - 1 : place] if place else [])
    try:
        ordered = list(graphlib.TopologicalSorter(after).static_order())
    except graphlib.CycleError:
        ordered = list(after)
    return {layer: number for number, layer in enumerate(ordered)}


def _by_component(lane: LaneMatches, depth: int, numbers: dict[_Path, int]) -> Callable[[int], int]:
    """Layers by the path's component at ``depth``; what has none (an embedding) belongs to the layer before it."""
    layers: dict[int, int] = {}
    last = 0
    for index in lane.order:
        if index in lane.found:
            last = numbers.get(lane.found[index][1][:depth], last)
            layers[index] = last
    return layers.__getitem__


def _by_repetition(lane: LaneMatches) -> Callable[[int], int]:
    """Layers by the first piece coming again, weight gradients aside."""
    order, found = lane.order, lane.found
    pieces = {piece for piece, _ in found.values() if not piece.weights}
    layers: dict[int, int] = {}
    seen: set[Piece] = set()
    first: Piece | None = None
    layer = 0
    for index in order:
        if index not in found:
            continue
        piece = found[index][0]
        if not piece.weights:
            first = first or piece
            if piece == first and seen == pieces and len(pieces) > 1:
                layer += 1
                seen = set()
            seen.add(piece)
        layers[index] = layer
    return layers.__getitem__
