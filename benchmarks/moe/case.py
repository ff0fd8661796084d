"""What one run of the MoE job measures, as plain data that every rank gets."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from annopipe.errors import CostError

__all__ = ["EAGER", "NETWORKS", "MoeCase", "NetworkKind"]

NetworkKind = Literal["namespaces", "emulated", "loopback"]
NETWORKS: tuple[NetworkKind, ...] = ("namespaces", "emulated", "loopback")
# The schedules that torch.distributed.pipelining runs here, too: those of benchmarks.eager_runtime, without torch.
EAGER = ("interleaved-1f1b", "zbv", "dualpipev")


@dataclasses.dataclass(frozen=True)
class MoeCase:
    """One measurement.

    pipeline_ranks, expert_ranks: sizes of the two groups that every rank is in.
    layers: transformer blocks of the model for each pipeline rank; a multiple of 2, since schedules have 1 or 2 stages
        on a rank.
    rows, width, top_k: tokens of a microbatch on each rank, their size, and experts that each goes to.
    paced: computation is waiting, ``ratio`` times as long as the communication in all; else the model computes.
    head: by how much longer the last block of a paced model computes.
    network: what carries messages between the ranks of an expert group.  rate_bytes_per_s: its bandwidth.
    schedules, eager: names of schedules, on our runtime and on torch.distributed.pipelining's.
    attaches: whether the eager ones run once more, with ``ap.attach``.
    nano_batches: above 1, our schedules run once more, with microbatches in so many parts where that pays.
    rounds: how often each runs, in alternation.
    """

    pipeline_ranks: int = 2
    expert_ranks: int = 2
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
    policy: str = "auto"
    schedules: tuple[str, ...] = ("1f1b", "interleaved-1f1b", "interleaved-zb", "zbv", "dualpipev")
    eager: tuple[str, ...] = EAGER
    attaches: bool = False
    nano_batches: int = 1
    rounds: int = 5

    def __post_init__(self) -> None:
        sizes = ("pipeline_ranks", "expert_ranks", "layers", "microbatches", "rows", "width", "top_k", "rounds")
        for name in (*sizes, "nano_batches"):
            if getattr(self, name) < 1:
                raise CostError(f"{name}={getattr(self, name)}: give at least 1")
        if self.layers % 2:
            raise CostError(f"layers={self.layers}: give an even number, since some schedules have 2 stages on a rank")
        if self.network not in NETWORKS:
            raise CostError(f"network {self.network!r} is not one of {', '.join(NETWORKS)}")
        unknown = [name for name in self.eager if name not in EAGER]
        if unknown:
            raise CostError(f"the eager runtime has no {unknown[0]!r} here; it has {', '.join(EAGER)}")
        if not self.rate_bytes_per_s > 0 or not self.ratio > 0:
            raise CostError("the rate and the ratio of computation to communication are positive")
        if not self.head > 0:
            raise CostError(f"head={self.head}: give how many times as long the last block computes, above 0")
        if not self.paced and self.pipeline_ranks > 1:
            raise CostError("real computation is measured with 1 pipeline rank, which holds all stages")
        if self.nano_batches > 1 and (not self.paced or self.rows % self.nano_batches):
            raise CostError(
                f"nano_batches={self.nano_batches}: they are measured with paced computation, and equal parts of "
                f"microbatches of {self.rows} rows"
            )
        if self.paced and self.expert_ranks < 2:
            raise CostError("computation is paced against communication: give at least 2 expert ranks")

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.pipeline_ranks * self.expert_ranks

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
    def title(self) -> str:
        """What a line about the case begins with."""
        kind = "paced" if self.paced else "measured"
        return f"{kind}, PP {self.pipeline_ranks} x EP {self.expert_ranks}, {self.microbatches} microbatches"

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "MoeCase":
        """The case that ``to_json`` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "schedules": tuple(fields["schedules"]), "eager": tuple(fields["eager"])})

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> "MoeCase":
        """The case of a result."""
        return cls.from_json(json.dumps(result["case"]))
