"""NodeCosts: how long each node of a graph takes, as plain data."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from annopipe.errors import CostError
from annopipe.simulation import Network

__all__ = ["NodeCosts", "as_costs", "load"]

_FORMAT = "annopipe node costs 1"


@dataclasses.dataclass(frozen=True)
class NodeCosts:
    """Seconds by node key; in a multiplexed graph the key is the node's name behind its lane, "F.mm_3".

    seconds: computation and host nodes: time on the issuing thread. Launches: time of the transfer with the link to
    itself.
    latency: launches: the part of the transfer that does not stretch when it shares the link.
    issue: launches: time that the issuing thread spends to start the transfer.
    network: how transfers of one process group share the link.
    source: how the numbers were obtained: "measured", "published", ...

    >>> costs = NodeCosts({"mm": 1e-3})
    >>> costs.in_lane("F").seconds
    {'F.mm': 0.001}
    """

    seconds: Mapping[str, float]
    latency: Mapping[str, float] = dataclasses.field(default_factory=dict)
    issue: Mapping[str, float] = dataclasses.field(default_factory=dict)
    network: Network = dataclasses.field(default_factory=Network)
    source: str = "given"

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise CostError(f"network is {self.network!r}: give an annopipe.simulation.Network")
        for table in (self.seconds, self.latency, self.issue):
            if not isinstance(table, Mapping):
                raise CostError(f"costs are a mapping from node to seconds, got {type(table).__name__}")
            for key, value in table.items():
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
                    raise CostError(f"the cost of {key} is {value!r}: costs are seconds, finite and not negative")

    def in_lane(self, lane: str) -> "NodeCosts":
        """The same costs for the graph when it is one lane of a multiplexed graph."""
        tables = ({f"{lane}.{k}": v for k, v in t.items()} for t in (self.seconds, self.latency, self.issue))
        seconds, latency, issue = tables
        return dataclasses.replace(self, seconds=seconds, latency=latency, issue=issue)

    def __or__(self, other: "NodeCosts") -> "NodeCosts":
        """Both together: ``forward.in_lane("F") | backward.in_lane("B")``; the right one wins where both have one."""
        if self.network != other.network:
            raise CostError(f"the costs are for different networks, {self.network} and {other.network}: give both one")
        return dataclasses.replace(
            self,
            source=self.source if self.source == other.source else f"{self.source} and {other.source}",
            seconds={**self.seconds, **other.seconds},
            latency={**self.latency, **other.latency},
            issue={**self.issue, **other.issue},
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the costs as JSON; ``load`` reads them."""
        data = {
            "format": _FORMAT,
            "source": self.source,
            "network": dataclasses.asdict(self.network),
            "seconds": dict(self.seconds),
            "latency": dict(self.latency),
            "issue": dict(self.issue),
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: str | os.PathLike[str]) -> NodeCosts:
    """Read costs that ``NodeCosts.save`` wrote.

    Raises:
        CostError: the file is not there, is not JSON, or is not such a file.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CostError(f"cannot read node costs from {path}: {error}") from error
    fields = {"format", "source", "network", "seconds", "latency", "issue"}
    if not isinstance(data, dict) or data.get("format") != _FORMAT or set(data) != fields:
        raise CostError(f"{path} is not a file of node costs: expected the fields {sorted(fields)}, format {_FORMAT!r}")
    try:
        network = Network(**data["network"])
        return NodeCosts(data["seconds"], data["latency"], data["issue"], network, str(data["source"]))
    except (TypeError, CostError) as error:
        raise CostError(f"{path} is malformed: {error}") from error


def as_costs(costs: NodeCosts | Mapping[str, float]) -> NodeCosts:
    """Costs given as ``NodeCosts`` or as a mapping from node to seconds.

    Raises:
        CostError: they are neither.
    """
    return costs if isinstance(costs, NodeCosts) else NodeCosts(costs)
