"""One layer of a model: how long it computes and communicates for one microbatch, and what it keeps."""

from dataclasses import dataclass

__all__ = ["Layer", "Recompute"]


@dataclass(frozen=True, slots=True)
class Recompute:
    """What a layer can compute again instead of keeping it.

    Attributes:
        saves: of the layer's activation, what is not kept then.
        costs: time that the layer's backward takes longer.
    """

    saves: float
    costs: float


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
    """

    F: float
    I: float  # noqa: E741 - the field's own name
    W: float
    activation: float = 0.0
    comm: float = 0.0
    parameters: float = 0.0
    recompute: Recompute | None = None

    @property
    def work(self) -> float:
        """Time of its computation, forward and backward."""
        return self.F + self.I + self.W

    def recomputed(self) -> "Layer":
        """The layer when it computes again what it can; itself when it can nothing.

        >>> Layer(1.0, 1.0, 1.0, activation=1.0, recompute=Recompute(saves=0.6, costs=0.4)).recomputed().I
        1.4
        """
        if self.recompute is None:
            return self
        kept = max(0.0, self.activation - self.recompute.saves)
        return Layer(self.F, self.I + self.recompute.costs, self.W, kept, self.comm, self.parameters)
