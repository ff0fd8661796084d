"""What one run of the overlap job measures, as plain data that every rank gets."""

import dataclasses
import json
from typing import Literal

from annopipe.errors import CostError

__all__ = ["NETWORKS", "ROUTINGS", "Case", "GraphKind", "NanoBatched", "NetworkKind", "RoutingKind"]

NetworkKind = Literal["namespaces", "emulated", "loopback", "nccl", "pinned"]
NETWORKS: tuple[NetworkKind, ...] = ("namespaces", "emulated", "loopback", "nccl", "pinned")
# The kinds of annopipe.models.Routing, whose import would bring torch in: `annopipe bench overlap --help` needs none.
RoutingKind = Literal["learned", "balanced", "skewed"]
ROUTINGS: tuple[RoutingKind, ...] = ("learned", "balanced", "skewed")
GraphKind = Literal["pair", "forward", "backward"]
NanoBatched = Literal["moe", "stage"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement.

    blocks: transformer blocks of the stage.  batch, sequence: tokens of a microbatch on each rank.
    hidden, expert_hidden, experts, top_k: sizes of the model.
    routing: how tokens find their experts; skew: the exponent of a skewed routing (``annopipe.models.Routing``).
    graph: a backward with a forward, or one of them alone, as at PP 1.
    nano_batches, nano_batched: lanes inside a graph, and what is split (``annopipe.models``).
    network: what carries the messages.  rate_bytes_per_s: its bandwidth where it is limited.
    paced: computation is waiting for its known time, scaled so that it adds up to ``ratio`` times the communication,
        or to ``computation_s`` where that is given.
    policies: what is compared.  rounds: how often, in alternation.
    """

    blocks: int = 2
    batch: int = 1
    sequence: int = 512
    hidden: int = 256
    expert_hidden: int = 256
    experts: int = 8
    top_k: int = 2
    routing: RoutingKind = "learned"
    skew: float = 1.0
    graph: GraphKind = "pair"
    nano_batches: int = 1
    nano_batched: NanoBatched = "moe"
    network: NetworkKind = "loopback"
    rate_bytes_per_s: float = 100e6
    paced: bool = False
    ratio: float = 1.0
    computation_s: float | None = None
    policies: tuple[str, ...] = ("sequential", "alternate", "dualpipe", "megatron", "list", "auto")
    rounds: int = 7
    seed: int = 0
    output: str = ""  # folder for timelines; nothing is written when empty

    def __post_init__(self) -> None:
        sizes = ("blocks", "batch", "sequence", "hidden", "expert_hidden", "experts", "top_k", "rounds", "nano_batches")
        for name in sizes:
            if getattr(self, name) < 1:
                raise CostError(f"{name}={getattr(self, name)}: give at least 1")
        if self.network not in NETWORKS:
            raise CostError(f"network {self.network!r} is not one of {', '.join(NETWORKS)}")
        if self.routing not in ROUTINGS or not 0 <= self.skew < float("inf"):
            raise CostError(
                f"routing {self.routing!r} with skew {self.skew}: the routing is one of {', '.join(ROUTINGS)}, "
                "the skew finite and not negative"
            )
        if self.rate_bytes_per_s <= 0 or self.ratio < 0:
            raise CostError("the rate is positive and the ratio of computation to communication not negative")

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Case":
        """The case that ``to_json`` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "policies": tuple(fields["policies"])})
