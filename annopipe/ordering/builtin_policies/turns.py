"""The order of nano-batches where there is no backward beside a forward: one computes while another's message moves.

    0   attention            experts  ==combine  attention ...
    1   ==dispatch attention ==dispatch experts  ==combine ...        (forward; a backward: combine, experts, dispatch)

Every lane is one place behind the lane before it, so that each piece of communication has the computation of another
lane beside it. A shared expert, which no exchange needs, is beside the first exchange of a layer, or the last one, that
has nothing else.

Source: the two micro-batches of DeepSeek's prefill, in its published profile (github.com/deepseek-ai/profile-data).
"""

import itertools
from collections.abc import Sequence

from annopipe.ordering.patterns import Pattern, Piece, apply
from annopipe.ordering.problem import OverlapProblem

__all__ = ["in_turns"]

_Steps = list[tuple[Piece, ...]]


def in_turns(problem: OverlapProblem, *, backward: bool) -> list[int]:
    """The order that lets nano-batches, all of forwards or all of backwards, take turns layer by layer."""
    talking = dict.fromkeys(node.lane for node in problem.nodes if node.kind == "launch")
    turns = tuple(talking)
    silent = tuple(lane for lane in problem.lanes if lane not in talking)
    steps = _backward(turns, silent) if backward else _forward(turns, silent)
    return apply(problem, Pattern(tuple(steps)), optional=True, carries_on=backward)


def _forward(turns: Sequence[str], silent: Sequence[str]) -> _Steps:
    steps: _Steps = [(*_pieces((turns[0], *silent), "attention"),)]
    for lane, following in itertools.pairwise(turns):
        steps.append((Piece(lane, "dispatch"), *_pieces([following], "attention"), *_pieces([lane], "shared")))
    steps.append((Piece(turns[-1], "dispatch"), *_pieces([turns[0]], "experts", "mlp")))
    for lane, following in itertools.pairwise(turns):
        steps.append((Piece(lane, "combine"), *_pieces([following], "experts", "mlp")))
    return [*steps, (Piece(turns[-1], "combine"), *_pieces([turns[-1]], "shared"), *_pieces(silent, "mlp"))]


def _backward(turns: Sequence[str], silent: Sequence[str]) -> _Steps:
    """The last step is beside the first one of the layer behind it.

    What silent lanes have of weight gradients are the sums over nano-batches: they come last.
    """
    steps: _Steps = [(Piece(turns[0], "combine"), *_pieces([turns[0]], "shared"), *_pieces(silent, "mlp"))]
    for lane, following in itertools.pairwise(turns):
        steps.append((Piece(following, "combine"), *_pieces([lane], "experts", "mlp"), *_weights([lane], "shared")))
    weights = _weights([turns[0]], "experts", "mlp")
    steps.append((Piece(turns[0], "dispatch"), *_pieces([turns[-1]], "experts", "mlp"), *weights))
    for lane, following in itertools.pairwise(turns):
        beside = (*_pieces([lane], "attention"), *_pieces([following], "shared"))
        steps.append((Piece(following, "dispatch"), *beside, *_weights([following], "experts", "mlp", "shared")))
    late = (*_weights(turns, "attention"), *_weights(silent, "attention", "experts", "shared", "mlp"))
    return [*steps, (*_pieces([turns[-1], *silent], "attention"), *late)]


def _pieces(lanes: Sequence[str], *regions: str) -> list[Piece]:
    return [Piece(lane, region) for lane in lanes for region in regions]


def _weights(lanes: Sequence[str], *regions: str) -> list[Piece]:
    return [Piece(lane, region, weights=True) for lane in lanes for region in regions]
