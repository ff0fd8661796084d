"""How long graphs of some stages take side by side as one combined graph, from their layers alone.

Each half of a layer's forward computes and then communicates: attention and dispatch, experts and combine. The backward
does the same in reverse, and nobody waits for its weight gradients. Computation and communication are two resources
that work on one thing after the other. The order is that of list scheduling by the longest way to the end; the real
graphs of a model are ordered by a policy (``annopipe.ordering``), which is at least as good.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from annopipe.tuning.layers import Layer

__all__ = ["Lane", "lanes_seconds"]

_COMPUTE, _COMM = 0, 1
Piece = tuple[int, float, float]  # resource, time, and the weight gradients that may run after it


@dataclass(frozen=True, slots=True)
class Lane:
    """One graph of a combination.

    Attributes:
        kind: F, B, I or W.
        layers: of its stage.
        share: of the microbatch: 0.5 for one of two nano-batches.
    """

    kind: str
    layers: tuple[Layer, ...]
    share: float = 1.0

    def pieces(self, speed: float) -> list[Piece]:
        """What it does, one thing after the other."""
        by = self.share / speed
        found: list[Piece] = []
        for layer in self.layers if self.kind == "F" else reversed(self.layers):
            sends = (_COMM, layer.comm * self.share / 2, 0.0)
            if self.kind == "F":
                found += [(_COMPUTE, layer.F * by / 2, 0.0), sends] * 2
            elif self.kind == "W":
                found.append((_COMPUTE, layer.W * by, 0.0))
            else:
                found += [sends, (_COMPUTE, layer.I * by / 2, layer.W * by / 2 if self.kind == "B" else 0.0)] * 2
        return [piece for piece in found if piece[1] or piece[2]]


@functools.lru_cache(maxsize=65536)
def lanes_seconds(lanes: tuple[Lane, ...], speed: float = 1.0) -> float:
    """The time of these graphs together.

    >>> layers = (Layer(F=1.0, I=1.0, W=1.0, comm=1.0),) * 4
    >>> lanes_seconds((Lane("F", layers),)), lanes_seconds((Lane("F", layers), Lane("B", layers)))
    (8.0, 12.0)
    >>> lanes_seconds((Lane("F", layers, 0.5), Lane("F", layers, 0.5)))
    4.25
    """
    chains = [lane.pieces(speed) for lane in lanes]
    ways = [_ways_to_the_end(chain) for chain in chains]
    ready, done = [0.0] * len(lanes), [0] * len(lanes)
    free, spare, end = [0.0, 0.0], 0.0, 0.0  # spare: weight gradients that may run whenever nothing else does
    pending = [lane for lane, chain in enumerate(chains) if chain]
    while pending:
        best, chosen = (0.0, 0.0), -1
        for lane in pending:
            place = done[lane]
            found = max(free[chains[lane][place][0]], ready[lane]), -ways[lane][place]
            if chosen < 0 or found < best:
                best, chosen = found, lane
        at = best[0]
        resource, seconds, weights = chains[chosen][done[chosen]]
        if resource == _COMPUTE:
            spare = max(0.0, spare - (at - free[_COMPUTE]))
        spare += weights
        free[resource] = ready[chosen] = at + seconds
        end = max(end, at + seconds)
        done[chosen] += 1
        if done[chosen] == len(chains[chosen]):
            pending.remove(chosen)
    return max(end, free[_COMPUTE] + spare)


def _ways_to_the_end(chain: Sequence[Piece]) -> list[float]:
    ways, way = [0.0] * len(chain), 0.0
    for index in reversed(range(len(chain))):
        way += chain[index][1]
        ways[index] = way
    return ways
