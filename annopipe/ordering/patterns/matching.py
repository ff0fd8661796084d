"""Which nodes of a problem a pattern's pieces mean, layer by layer.

A piece means the nodes of its lane whose region's path contains the piece's path, component by component; where
several pieces fit, the innermost one. With ``.W`` it means their weight gradients; without, everything else, and the
weight gradients too if no ``.W`` piece names them.
Layers are told apart as ``annopipe.ordering.patterns.layers`` says.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from annopipe.graphs.region_paths import ends
from annopipe.ordering.patterns.layers import LaneMatches, layers_of
from annopipe.ordering.patterns.text import Pattern, Piece
from annopipe.ordering.problem import OverlapNode, OverlapProblem

__all__ = ["Match", "match"]

_Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A node's piece and its layer, counted from 0 in the lane's program order."""

    piece: Piece
    layer: int


def match(problem: OverlapProblem, pattern: Pattern, *, optional: bool = False) -> dict[int, Match]:
    """What the pieces of a pattern mean, by node index.

    Args:
        optional: pieces that mean nothing are skipped rather than refused.

    Raises:
        PatternError: a piece names a lane or a region that is not there, or weight gradients where there are none.
    """
    of_graph: dict[str, list[LaneMatches]] = {}
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
            of_graph.setdefault(nodes[0].own_graph, []).append(LaneMatches([node.index for node in nodes], found))
    matches: dict[int, Match] = {}
    for lanes in of_graph.values():
        layers = layers_of(lanes)
        matches.update({i: Match(piece, layers[i]) for lane in lanes for i, (piece, _) in lane.found.items()})
    return matches


def _pieces_of(nodes: Iterable[OverlapNode], pieces: Sequence[Piece]) -> dict[int, tuple[Piece, _Path]]:
    """For each node that a piece means: the piece, and the components of the region's path before the match."""
    of_region: dict[tuple[str, bool], tuple[Piece, _Path] | None] = {}
    found = {}
    for node in nodes:
        key = node.region, node.phase == "weight_grad"
        if key not in of_region:
            of_region[key] = _best(node.region, pieces, weights=key[1])
        best = of_region[key]
        if best is not None:
            found[node.index] = best
    return found


def _best(region: str, pieces: Sequence[Piece], *, weights: bool) -> tuple[Piece, _Path] | None:
    """The innermost match; of a region and its own .W piece, the one that is meant."""
    best: tuple[tuple[int, int, bool], Piece, _Path] | None = None
    for piece in pieces:
        found = ends(region, piece.region) if weights or not piece.weights else []
        if found:
            size = piece.region.count("/") + 1
            rank = found[-1], size, piece.weights
            if best is None or rank > best[0]:
                best = rank, piece, tuple(region.split("/"))[: found[-1] - size]
    return None if best is None else best[1:]


def _reason(piece: Piece, nodes: Sequence[OverlapNode], problem: OverlapProblem) -> str:
    if not any(problem.lanes):
        return f"the graph has no lanes, so there is no lane {piece.lane!r}; ap.multiplex(..., lanes=...) names them"
    if not nodes:
        return f"there is no lane {piece.lane!r}; there are {', '.join(filter(None, problem.lanes))}"
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
