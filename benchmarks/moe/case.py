"""What one run of the MoE job measures, as plain data that every rank gets."""

import dataclasses
import json
from typing import Any, Literal

from annopipe.errors import CostError
from benchmarks.moe.variant import Variant

__all__ = ["NETWORKS", "MoeCase", "NetworkKind", "copies_to"]

NetworkKind = Literal["namespaces", "emulated", "loopback"]
NETWORKS: tuple[NetworkKind, ...] = ("namespaces", "emulated", "loopback")


def copies_to(top_k: int, ranks: int, skew: float) -> tuple[int, ...]:
    """How many copies of each token go to each expert rank; the first one gets ``skew`` times its even share.

    >>> copies_to(64, 2, 1.0), copies_to(64, 2, 1.5), copies_to(8, 4, 2.0)
    ((32, 32), (48, 16), (4, 2, 1, 1))

    Raises CostError where copies cannot be shared evenly, or a rank would get none.
    """
    if top_k % ranks:
        raise CostError(f"top_k={top_k}: copies of a token on {ranks} expert ranks: give a multiple of {ranks}")
    busiest = round(top_k / ranks * skew)
    others, more = divmod(top_k - busiest, max(1, ranks - 1))
    if busiest > top_k or (ranks > 1 and others < 1):
        raise CostError(
            f"skew={skew:g}: {top_k} copies of a token on {ranks} expert ranks leave a rank without any: give a skew "
            f"between 1 and {ranks - ranks * (ranks - 1) / top_k:g}, or a larger top_k"
        )
    return (busiest, *(others + (place < more) for place in range(ranks - 1)))


@dataclasses.dataclass(frozen=True)
class MoeCase:
    """One measurement: a model on ranks, and what runs on it in alternation.

    pipeline_ranks, expert_ranks, data_ranks: sizes of the groups that every rank is in; ``data_ranks`` copies of all
        the others sum their gradients in the step.
    layers: transformer blocks of the model for each pipeline rank; a multiple of 2, since schedules have 1 or 2 stages
        on a rank.
    rows, width, top_k: tokens of a microbatch on each rank, their size, and experts that each goes to.
    paced: computation is waiting, ``ratio`` times as long as the communication in all; else the model computes.
    head: by how much longer the last block of a paced model computes.
    network: what carries messages between the ranks of an expert group.  rate_bytes_per_s: its bandwidth.
    variants: what runs.
    rounds: how often each runs, in alternation.
    """

    pipeline_ranks: int = 2
    expert_ranks: int = 2
    data_ranks: int = 1
    layers: int = 2
    microbatches: int = 8
    rows: int = 2
    width: int = 512
    top_k: int = 64
    paced: bool = True
    ratio: float = 1.0
    head: float = 1.0
    network: NetworkKind = "emulated"
    rate_bytes_per_s: float = 12.5e6
    variants: tuple[Variant, ...] = ()
    rounds: int = 5

    def __post_init__(self) -> None:
        sizes = ("pipeline_ranks", "expert_ranks", "data_ranks", "layers", "microbatches", "rows", "width", "top_k")
        for name in (*sizes, "rounds"):
            if getattr(self, name) < 1:
                raise CostError(f"{name}={getattr(self, name)}: give at least 1")
        if self.layers % 2:
            raise CostError(f"layers={self.layers}: give an even number, since some schedules have 2 stages on a rank")
        if self.network not in NETWORKS:
            raise CostError(f"network {self.network!r} is not one of {', '.join(NETWORKS)}")
        if not self.rate_bytes_per_s > 0 or not self.ratio > 0:
            raise CostError("the rate and the ratio of computation to communication are positive")
        if not self.head > 0:
            raise CostError(f"head={self.head}: give how many times as long the last block computes, above 0")
        if not self.paced and self.pipeline_ranks > 1:
            raise CostError("real computation is measured with 1 pipeline rank, which holds all stages")
        if self.paced and self.expert_ranks < 2:
            raise CostError("computation is paced against communication: give at least 2 expert ranks")
        for variant in self.variants:
            self._check(variant)

    def _check(self, variant: Variant) -> None:
        parts = variant.nano_batches
        if parts > 1 and (not self.paced or self.rows % parts):
            raise CostError(
                f"nano_batches={parts}: they are measured with paced computation, and equal parts of microbatches of "
                f"{self.rows} rows"
            )
        if self.paced and variant.compiled:
            raise CostError("compile: paced computation takes its known time, compiled or not: leave it out")
        if not self.paced and variant.skew != 1.0:
            raise CostError("skew: routing is skewed in models whose computation is paced: give 1")
        if variant.skew < 1.0:
            raise CostError(f"skew={variant.skew:g}: give 1 for even routing, or more")
        if self.paced:
            copies_to(self.top_k, self.expert_ranks, variant.skew)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.pipeline_ranks * self.expert_ranks * self.data_ranks

    @property
    def blocks(self) -> int:
        """Of the whole model."""
        return self.layers * self.pipeline_ranks

    @property
    def transfer_bytes(self) -> int:
        """What a rank sends to the others of its expert group in one all-to-all of a microbatch."""
        return self.rows * self.top_k * self.width * 4 * (self.expert_ranks - 1) // self.expert_ranks

    @property
    def message_bytes(self) -> int:
        """What a stage hands to the next one."""
        return self.rows * self.width * 4

    @property
    def kind(self) -> Literal["paced", "emulated", "measured"]:
        """What times of the case are called."""
        if not self.paced:
            return "measured"
        return "emulated" if self.network == "emulated" else "paced"

    def has_phases(self, variant: Variant) -> bool:
        """Whether the phases of a variant are measured: of those with nano-batches, and of the same without."""
        whole = [each.without(nano_batches=1) for each in self.variants if each.nano_batches > 1]
        return variant.without(nano_batches=1) in whole

    @property
    def title(self) -> str:
        """What a line about the case begins with."""
        copies = f" x DP {self.data_ranks}" if self.data_ranks > 1 else ""
        degrees = f"PP {self.pipeline_ranks} x EP {self.expert_ranks}{copies}"
        return f"{self.kind}, {degrees}, {self.microbatches} microbatches"

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "MoeCase":
        """The case that ``to_json`` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "variants": tuple(Variant(**variant) for variant in fields["variants"])})
