"""One layer of a model: how long it computes and communicates for one microbatch, and what it keeps."""

import math
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Layer", "Piece", "Pieces", "Recompute"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Computation of a layer up to a message, and the message, which has to arrive before the next piece begins.

    Attributes:
        compute: time of what the message waits for, or, in the last piece, of what is left.
        beside: time of what no message waits for: it may run at any time from here to the end of the graph.
        weight: the same, for weight gradients, which are left out where a backward is split.
        comm: time of the message; 0 in the last piece.
    """

    compute: float
    beside: float = 0.0
    weight: float = 0.0
    comm: float = 0.0


# No slots: the hash is kept.
@dataclass(frozen=True)
class Pieces:
    """What a layer's graphs do one after the other.

    >>> Pieces((Piece(1.0, comm=0.5), Piece(1.0)), (Piece(2.0, weight=1.0),)).times
    (2.0, 2.0, 1.0)
    """

    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.forward, self.backward)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    @property
    def times(self) -> tuple[float, float, float]:
        """Computation of the forward, of the backward-input and of the backward-weight."""
        inside = [math.fsum(piece.compute + piece.beside for piece in one) for one in (self.forward, self.backward)]
        return inside[0], inside[1], math.fsum(piece.weight for piece in (*self.forward, *self.backward))

    @property
    def comm(self) -> float:
        """Communication: the mean of the forward's and the backward's."""
        return math.fsum(piece.comm for piece in (*self.forward, *self.backward)) / 2


@dataclass(frozen=True, slots=True)
class Recompute:
    """What a layer can compute again instead of keeping it.

    Attributes:
        saves: of the layer's activation, what is not kept then.
        costs: time that the layer's backward takes longer.
        backward: the pieces of that backward, where the layer has pieces.
        kept_for_weight: memory that stays then from the end of I to the end of W; None: as without.
    """

    saves: float
    costs: float
    backward: tuple[Piece, ...] = ()
    kept_for_weight: float | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, for one microbatch, in any one unit of time and one of memory.

    Attributes:
        F, I, W: time of its forward, backward-input and backward-weight, without communication.
        activation: memory that its forward leaves for its backward.
        comm: time of communication inside its forward, and as much inside its backward, which is exposed unless
            something else runs in the same combined graph. It has a resource of its own.
        parameters: memory of its parameters, with what goes with them.
        recompute: what it can compute again; None: nothing.
        kept_for_weight: memory that stays from the end of I to the end of W; None: as much as the activation.
        message: time of handing its output on to another rank; None: that of the workload.
        reduce: time of summing its gradients over data-parallel ranks, after the last action of its rank.
        pieces: what its graphs do one after the other; None: both halves of F and I compute, then communicate.
    """

    F: float
    I: float  # noqa: E741 - the field's own name
    W: float
    activation: float = 0.0
    comm: float = 0.0
    parameters: float = 0.0
    recompute: Recompute | None = None
    kept_for_weight: float | None = None
    message: float | None = None
    reduce: float = 0.0
    pieces: Pieces | None = None

    @classmethod
    def of_pieces(cls, pieces: Pieces, **more: Any) -> "Layer":
        """A layer whose times are those of its pieces; ``more`` are the other attributes.

        >>> Layer.of_pieces(Pieces((Piece(1.0, comm=0.5), Piece(1.0)), (Piece(2.0, weight=1.0),))).work
        5.0
        """
        return cls(*pieces.times, comm=pieces.comm, pieces=pieces, **more)

    @property
    def work(self) -> float:
        """Time of its computation, forward and backward."""
        return self.F + self.I + self.W

    @property
    def kept(self) -> float:
        """Memory that stays from the end of its backward-input to the end of its backward-weight."""
        return self.activation if self.kept_for_weight is None else self.kept_for_weight

    def recomputed(self) -> "Layer":
        """The layer when it computes again what it can; itself when it can nothing.

        >>> Layer(1.0, 1.0, 1.0, activation=1.0, recompute=Recompute(saves=0.6, costs=0.4)).recomputed().I
        1.4
        """
        again = self.recompute
        if again is None:
            return self
        pieces = self.pieces
        if pieces is not None:
            first, *rest = pieces.backward
            backward = again.backward or (replace(first, compute=first.compute + again.costs), *rest)
            pieces = Pieces(pieces.forward, backward)
        return replace(
            self,
            I=self.I + again.costs,
            activation=max(0.0, self.activation - again.saves),
            recompute=None,
            kept_for_weight=self.kept_for_weight if again.kept_for_weight is None else again.kept_for_weight,
            pieces=pieces,
        )
