"""How long graphs of some stages take side by side as one combined graph, from their layers alone.

A layer that was traced says what its graphs do one after the other (``annopipe.tuning.layers.Pieces``). Of one that was
not, each half of the forward computes and then communicates: attention and dispatch, experts and combine. The backward
does the same in reverse, and nobody waits for its weight gradients. Computation and communication are two resources;
messages go one after the other, as they are launched. A piece of computation is many nodes: another lane's may come in
between, when a message for it arrives. Of the lanes that can compute, the one goes on whose next message is nearest, or
the one that has the most communication before it, whichever ends earlier. The real graphs of a model are ordered by a
policy (``annopipe.ordering``); docs/tuning.md says how far the two agree.
"""

import functools
import itertools
import math
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
            if self.kind == "W":
                found.append((_COMPUTE, layer.W * by, 0.0))
            elif layer.pieces is not None:
                for piece in layer.pieces.forward if self.kind == "F" else layer.pieces.backward:
                    beside = piece.beside + (piece.weight if self.kind == "B" else 0.0)
                    found += [(_COMPUTE, piece.compute * by, beside * by), (_COMM, piece.comm * self.share, 0.0)]
            else:
                sends = (_COMM, layer.comm * self.share / 2, 0.0)
                if self.kind == "F":
                    found += [(_COMPUTE, layer.F * by / 2, 0.0), sends] * 2
                else:
                    weight = layer.W * by / 2 if self.kind == "B" else 0.0
                    found += [sends, (_COMPUTE, layer.I * by / 2, weight)] * 2
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
    if len(lanes) == 1:
        return _Run(chains, by_comm=False).seconds()
    return min(_Run(chains, by_comm=by_comm).seconds() for by_comm in (False, True))


class _Run:
    """A simulation of lanes, by one of two rules for which computation goes on."""

    def __init__(self, chains: Sequence[Sequence[Piece]], *, by_comm: bool) -> None:
        self._chains, self._by_comm = chains, by_comm
        self._ahead = [_comm_ahead(chain) for chain in chains]
        self._place = [-1] * len(chains)  # of the piece of computation that a lane is at
        self._left, self._ready = [0.0] * len(chains), [0.0] * len(chains)  # of that piece: its time, its begin
        self._link = self._end = 0.0
        self._active = [lane for lane, chain in enumerate(chains) if chain]

    def seconds(self) -> float:
        """The end of everything."""
        now = spare = 0.0  # spare: what may run whenever nothing else does
        active, ready, left = self._active, self._ready, self._left
        for lane in list(active):
            self._advance(lane, 0.0)
        while active:
            able = [lane for lane in active if ready[lane] <= now]
            later = min([ready[lane] for lane in active if ready[lane] > now], default=math.inf)
            if not able:
                spare, now = max(0.0, spare - (later - now)), later
                continue
            lane = able[0] if len(able) == 1 else min(able, key=self._rank)
            if left[lane] <= later - now:
                now += left[lane]
                spare += self._chains[lane][self._place[lane]][2]
                self._advance(lane, now)
            else:
                left[lane] -= later - now
                now = later
        return max(self._end, now + spare)

    def _rank(self, lane: int) -> tuple[float | bool, float]:
        """The smaller, the more urgent."""
        ahead = self._ahead[lane][self._place[lane]]
        return (-ahead if self._by_comm else not ahead), self._left[lane]

    def _advance(self, lane: int, now: float) -> None:
        """Go on to the next computation, over the messages before it."""
        chain, place = self._chains[lane], self._place[lane] + 1
        while place < len(chain) and chain[place][0] == _COMM:
            now = self._link = max(self._link, now) + chain[place][1]
            place += 1
        self._place[lane], self._end = place, max(self._end, now)
        if place == len(chain):
            self._active.remove(lane)
        else:
            self._left[lane], self._ready[lane] = chain[place][1], now


def _comm_ahead(chain: Sequence[Piece]) -> list[float]:
    """For each piece, the communication from there to the end."""
    sent = [piece[1] if piece[0] == _COMM else 0.0 for piece in chain]
    return [*itertools.accumulate(reversed(sent))][::-1]
