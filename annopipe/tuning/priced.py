"""A model's layers as they were traced and priced for one size of microbatch: plain data, on no particular ranks."""

from dataclasses import dataclass

from annopipe.costs.cluster import Cluster
from annopipe.costs.collectives import transfer
from annopipe.errors import CostError
from annopipe.tuning.degrees import Degrees
from annopipe.tuning.layers import Layer, Pieces, Recompute

__all__ = ["Parameters", "PricedLayer", "PricedModel", "TrainingState"]


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What training keeps of a parameter beside itself, and where.

    Attributes:
        gradient_bytes: of one element's gradient, which is also what is summed over ranks.
        optimizer_bytes: of one element's optimizer state. The default is a float32 copy and two moments.
        sharded: whether data-parallel ranks share the optimizer's state: gradients are then reduce-scattered, and
            new parameters gathered; else gradients are all-reduced.

    Raises CostError for a number that is no amount.
    """

    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    sharded: bool = True

    def __post_init__(self) -> None:
        for name in ("gradient_bytes", "optimizer_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < float("inf"):
                raise CostError(f"{name}={value!r}: give bytes for each element, not negative")


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many elements a layer's parameters have on one rank, those that are trained, and bytes of all."""

    elements: int = 0
    size_bytes: int = 0

    def held(self, state: TrainingState, replicas: int) -> float:
        """Bytes on one of so many ranks that have the same.

        >>> Parameters(10, 20).held(TrainingState(), replicas=4)
        90.0
        """
        shared = replicas if state.sharded else 1
        return self.size_bytes + self.elements * (state.gradient_bytes + state.optimizer_bytes / shared)

    def reduced_s(self, state: TrainingState, cluster: Cluster, replicas: int, nodes: int) -> float:
        """Seconds until the gradients of so many ranks are summed, and the parameters the same again."""
        if replicas == 1 or not self.elements:
            return 0.0
        sizes = self.elements * state.gradient_bytes, float(self.size_bytes)
        if not state.sharded:
            return transfer("all_reduce", sizes[0], replicas, cluster.hardware, nodes=nodes).seconds
        scattered = transfer("reduce_scatter", sizes[0], replicas, cluster.hardware, nodes=nodes).seconds
        return scattered + transfer("all_gather", sizes[1], replicas, cluster.hardware, nodes=nodes).seconds


@dataclass(frozen=True, slots=True)
class PricedLayer:
    """One layer for one microbatch, in seconds and bytes.

    Attributes:
        pieces: what its graphs do one after the other.
        activation: what its forward leaves for its backward.
        kept_for_weight: what stays between its backward-input and its backward-weight.
        recompute: what it can compute again.
        shared, experts: its parameters, those of routed experts apart.
        output_bytes: what it hands on.
    """

    pieces: Pieces
    activation: float
    kept_for_weight: float
    recompute: Recompute | None
    shared: Parameters
    experts: Parameters
    output_bytes: float

    def layer(self, cluster: Cluster, degrees: Degrees, state: TrainingState) -> Layer:
        """The layer on a cluster."""
        replicas, per_node = degrees.data // degrees.expert, cluster.hardware.ranks_per_node
        nodes = -(-degrees.data // per_node)
        reduced = self.shared.reduced_s(state, cluster, degrees.data, nodes)
        reduced += self.experts.reduced_s(state, cluster, replicas, min(replicas, nodes))
        return Layer.of_pieces(
            self.pieces,
            activation=self.activation,
            parameters=self.held(degrees, state),
            recompute=self.recompute,
            kept_for_weight=self.kept_for_weight,
            message=self.output_bytes / cluster.link(degrees.devices).attained,
            reduce=reduced,
        )

    def held(self, degrees: Degrees, state: TrainingState) -> float:
        """Bytes of its parameters on one rank, with gradients and optimizer state."""
        return self.shared.held(state, degrees.data) + self.experts.held(state, degrees.data // degrees.expert)


@dataclass(frozen=True, slots=True)
class PricedModel:
    """All layers of a model: see ``Workload`` for towers and ``batch_wide``."""

    layers: tuple[PricedLayer, ...]
    towers: tuple[tuple[PricedLayer, ...], ...] = ()
    batch_wide: bool | None = None

    @property
    def all_layers(self) -> tuple[PricedLayer, ...]:
        """The layers of all chains, chain by chain."""
        return tuple(layer for chain in (*self.towers, self.layers) for layer in chain)
