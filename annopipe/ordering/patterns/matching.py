"""Which nodes of a problem a pattern's pieces mean, layer by layer.

A piece means the nodes of its lane whose region's path contains the piece's path, component by component; where
several pieces fit, the innermost one. With ``.W`` it means their weight gradients; without, everything else, and the
weight gradients too if no ``.W`` piece names them.

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

from annopipe.ordering.patterns.text import Pattern, Piece
from annopipe.ordering.problem import OverlapNode, OverlapProblem

__all__ = ["Match", "match"]

_Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A node's piece and its layer, counted from 0 in the lane's program order."""

    piece: Piece
    layer: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Lane:
    """The nodes of one lane, in program order, and for those that a piece means: piece, and components before."""

    order: list[int]
    found: dict[int, tuple[Piece, _Path]]


def match(problem: OverlapProblem, pattern: Pattern, *, optional: bool = False) -> dict[int, Match]:
    """What the pieces of a pattern mean, by node index.

    Args:
        optional: pieces that mean nothing are skipped rather than refused.

    Raises:
        PatternError: a piece names a lane or a region that is not there, or weight gradients where there are none.
    """
    of_graph: dict[str, list[_Lane]] = {}
    for lane in dict.fromkeys(piece.lane for piece in pattern.pieces):
        pieces = [piece for piece in pattern.pieces if piece.lane == lane]
        nodes = [node for node in problem.nodes if node.lane == lane]
        found = _pieces_of(nodes, pieces)
        if not optional:
            used = {piece for piece, _ in found.values()}
            for piece in pieces:
                if piece not in used:
                    raise pattern.error(piece, _reason(piece, nodes, problem))
        if nodes:
            of_graph.setdefault(nodes[0].own_graph, []).append(_Lane([node.index for node in nodes], found))
    matches: dict[int, Match] = {}
    for lanes in of_graph.values():
        matches.update(_layered(lanes))
    return matches


def _pieces_of(nodes: Iterable[OverlapNode], pieces: Sequence[Piece]) -> dict[int, tuple[Piece, _Path]]:
    """For each node that a piece means: the piece, and the components of the region's path before the match."""
    of_region: dict[tuple[str, bool], tuple[Piece, _Path] | None] = {}
    found = {}
    for node in nodes:
        key = node.region, node.phase == "weight_grad"
        if key not in of_region:
            of_region[key] = _best(tuple(node.region.split("/")), pieces, weights=key[1])
        best = of_region[key]
        if best is not None:
            found[node.index] = best
    return found


def _best(path: _Path, pieces: Sequence[Piece], *, weights: bool) -> tuple[Piece, _Path] | None:
    """The innermost match; of a region and its own .W piece, the one that is meant."""
    best: tuple[tuple[int, int, bool], Piece, _Path] | None = None
    for piece in pieces:
        if piece.weights and not weights:
            continue
        own = tuple(piece.region.split("/"))
        ends = [end for end in range(len(own), len(path) + 1) if path[end - len(own) : end] == own]
        if ends:
            rank = ends[-1], len(own), piece.weights
            if best is None or rank > best[0]:
                best = rank, piece, path[: ends[-1] - len(own)]
    return None if best is None else best[1:]


def _layered(lanes: Sequence[_Lane]) -> dict[int, Match]:
    """The matches of the lanes of one graph."""
    depth = _layer_depth([found for lane in lanes for found in lane.found.values()])
    numbers = {} if depth is None else _numbered([_layers_in_order(lane, depth) for lane in lanes])
    matches: dict[int, Match] = {}
    for lane in lanes:
        layer_of = _by_repetition(lane) if depth is None else _by_component(lane, depth, numbers)
        matches.update({index: Match(piece, layer_of(index)) for index, (piece, _) in lane.found.items()})
    return matches


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


def _layers_in_order(lane: _Lane, depth: int) -> list[_Path]:
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


def _by_component(lane: _Lane, depth: int, numbers: dict[_Path, int]) -> Callable[[int], int]:
    """Layers by the path's component at ``depth``; what has none (an embedding) belongs to the layer before it."""
    layers: dict[int, int] = {}
    last = 0
    for index in lane.order:
        if index in lane.found:
            last = numbers.get(lane.found[index][1][:depth], last)
            layers[index] = last
    return layers.__getitem__


def _by_repetition(lane: _Lane) -> Callable[[int], int]:
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


def _reason(piece: Piece, nodes: Sequence[OverlapNode], problem: OverlapProblem) -> str:
    if not any(problem.lanes):
        return f"the graph has no lanes, so there is no lane {piece.lane!r}; ap.multiplex(..., lanes=...) names them"
    if not nodes:
        return f"there is no lane {piece.lane!r}; there are {', '.join(problem.lanes)}"
    named = _pieces_of(nodes, [dataclasses.replace(piece, weights=False)])
    if piece.weights and named:
        return f"{piece.region} of lane {piece.lane} has no weight gradients; leave out .W"
    if named:  # without .W, and everything it means goes to other pieces
        return f"{piece} means nothing that another piece does not mean more exactly; leave it out"
    regions = sorted({component for node in nodes for component in node.region.split("/")})
    shown = ", ".join(regions[:12]) + (", ..." if len(regions) > 12 else "")
    others = _pieces_of(problem.nodes, [dataclasses.replace(piece, weights=False)])
    having = dict.fromkeys(problem.nodes[index].lane for index in sorted(others))  # of nano-batches, say: F0, F1
    hint = f"; lanes that have it: {', '.join(having)}" if having else ""
    return f"lane {piece.lane} has no region {piece.region!r}; its regions' paths have {shown}{hint}"
