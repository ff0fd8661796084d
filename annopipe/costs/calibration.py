"""What ``ap.costs.calibrate`` has measured, and the description of hardware that comes of it.

    found.save("machine.toml")            # for ap.costs.Hardware.from_toml and ap.Cluster.from_toml
    found.hardware                        # ap.costs.roofline(graph, found.hardware)

A link's bandwidth is that of messages between two ranks; ``in_collectives`` says what each rank gets of it in an
all-to-all.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annopipe.costs.collectives import transfer
from annopipe.costs.device_timing import Attained
from annopipe.costs.hardware import Hardware, Link
from annopipe.costs.interference import Interference
from annopipe.costs.message_timing import Kind, MessageTimes, Where
from annopipe.errors import CostError
from annopipe.toml_files import toml_text

__all__ = ["Calibration", "described"]

_POOR = 0.2  # a deviation from the line that is worth a note


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A machine as measured, the same on every rank; plain data.

    hardware: one rank's device and the links around it.  devices: how many ranks there are.  memory: bytes of each.
    messages: what was measured of each kind of message.  interference: of communication and computation.
    backend: what carried the messages.  cores: of a machine, where the ranks compute on it; 0 for GPUs.
    ranks_of_cores: how many ranks share those.  seconds: what measuring took.
    """

    hardware: Hardware
    devices: int
    memory: int
    messages: tuple[MessageTimes, ...]
    interference: Interference
    backend: str
    cores: int
    ranks_of_cores: int
    seconds: float

    def of(self, kind: Kind, where: Where = "inside") -> MessageTimes:
        """What was measured of a kind of message.

        Raises CostError where the ranks have no such link.
        """
        for found in self.messages:
            if (found.kind, found.where) == (kind, where):
                return found
        known = ", ".join(f"{each.kind} {each.where}" for each in self.messages)
        raise CostError(f"no {kind} {where} nodes was measured, only {known}: calibrate on ranks that have such links")

    @property
    def crosses_nodes(self) -> bool:
        """Whether some of the ranks are on different nodes."""
        return any(each.where == "between" for each in self.messages)

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of these numbers."""
        found = []
        if self.cores and self.cores < self.ranks_of_cores:
            found.append(
                f"{self.ranks_of_cores} ranks share {self.cores} cores: the device's numbers and the interference are "
                "those of ranks that slow each other down"
            )
        if self.backend != "gloo":
            found.append(f"messages over {self.backend}: developed on gloo, not tried on several GPUs by its authors")
        found += [
            f"{each.kind} {each.where} nodes deviates from latency + bytes / bandwidth by {each.line.residual:.0%}; "
            "more than disturbances? then take the times themselves (--json)"
            for each in self.messages
            if each.line.residual > _POOR
        ]
        return found

    def modelled(self, found: MessageTimes) -> float:
        """What the hardware's numbers say of the largest message that was measured, as a share of what it took."""
        size, seconds = max(found.seconds.items())
        link = self.hardware.inside if found.where == "inside" else self.hardware.outside
        if found.kind == "send":
            return (link.hop_s + size / link.attained) / seconds
        ranks, local = found.ranks, min(found.ranks, self.hardware.ranks_per_node)
        kept = local if found.where == "between" and found.kind == "all_to_all" else 1
        whole = size * ranks / (ranks - kept)
        return transfer(found.kind, whole, ranks, self.hardware, nodes=ranks // local).seconds / seconds

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write TOML that ``ap.costs.Hardware.from_toml`` and ``ap.Cluster.from_toml`` read.

        Raises CostError when the file cannot be written.
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise CostError(f"cannot write {path}: {error.strerror}") from error

    def to_toml(self) -> str:
        """The text of the file."""
        described = {"devices": self.devices, "memory": self.memory, "hardware": dataclasses.asdict(self.hardware)}
        return f"# measured by annopipe calibrate: {self.devices} ranks over {self.backend}\n{toml_text(described)}"

    def plain(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return dataclasses.asdict(self)


def described(
    name: str,
    own: Attained,
    messages: Sequence[MessageTimes],
    per_node: int,
    interference: Interference,
    in_flight: int = 1,
) -> Hardware:
    """The hardware that measured numbers describe; what is measured is attained, so the fractions are 1."""
    found = {(each.kind, each.where): each for each in messages}
    home: Where = "inside" if per_node > 1 else "between"
    exchange, hop_s = found["all_to_all", home], found["send", home].line.latency_s
    start_s = max(0.0, exchange.line.latency_s - exchange.issue_s - hop_s)
    links = {where: _link(found, where) for kind, where in found if kind == "send"}
    sources = dict.fromkeys(["peak_flops", "memory_bandwidth", "kernel_launch_s", "host_read_s"], "measured")
    for where in links:
        one, other = found["send", where].line, found["all_to_all", where].line
        sources["inside" if len(links) == 1 else where] = f"measured: send and receive {one}; all-to-all {other}"
    return Hardware(
        name=name,
        **dataclasses.asdict(own),
        matmul_fraction=1.0,
        attention_fraction=1.0,
        memory_fraction=1.0,
        inside=links[home],
        between=links["between"] if len(links) == 2 else None,
        ranks_per_node=per_node,
        collective_start_s=start_s,
        collective_issue_s=exchange.issue_s,
        interference=interference.matmul,
        in_flight=in_flight,
        sources={
            **sources,
            **dict.fromkeys(["collective_start_s", "collective_issue_s", "interference", "in_flight"], "measured"),
        },
    )


def _link(found: dict[tuple[Kind, Where], MessageTimes], where: Where) -> Link:
    send, exchange = found["send", where].line, found["all_to_all", where].line
    return Link(send.bandwidth, fraction=1.0, hop_s=send.latency_s, in_collectives=exchange.bandwidth / send.bandwidth)
