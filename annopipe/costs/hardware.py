"""What one rank's machine can do: the numbers that roofline costs are made of, as plain data.

    ap.costs.machine("h100")                                      # an entry of the table in machines.py
    dataclasses.replace(ap.costs.machine("h100"), ranks_per_node=4)
    ap.costs.Hardware.from_toml("cluster.toml")

A peak is the vendor's; the fraction of it that good kernels attain is a number beside it, with its own reason, so that
neither hides in the other. A TOML file has the fields of ``Hardware``, with tables for peak_flops, inside, between and
sources (units: FLOP/s, bytes/s, seconds); where it describes a cluster, as ``annopipe calibrate`` does, they are those
of its table ``[hardware]``:

    name = "my cluster"
    memory_bandwidth = 3.35e12
    ranks_per_node = 8
    [peak_flops]
    bfloat16 = 989e12
    [inside]
    bandwidth = 450e9
    [between]
    bandwidth = 50e9
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from annopipe.errors import CostError
from annopipe.toml_files import parse_toml

__all__ = ["Hardware", "Link"]


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What joins two ranks, seen from one of them.

    bandwidth: bytes per second in one direction, the vendor's number.
    fraction: the share of it that large messages attain.
    hop_s: time for a message of no bytes to get to the next rank.
    in_collectives: what of that each rank gets while all send to all, as a share: 0.5 where two share a medium.

    >>> Link(50e9, fraction=0.9).attained
    45000000000.0
    """

    bandwidth: float
    fraction: float = 0.85
    hop_s: float = 5e-6
    in_collectives: float = 1.0

    def __post_init__(self) -> None:
        _check("Link", self, positive=("bandwidth", "in_collectives"), times=("hop_s",), fractions=("fraction",))

    @property
    def attained(self) -> float:
        """Bytes per second that large messages attain in one direction."""
        return self.bandwidth * self.fraction

    @property
    def collective(self) -> float:
        """Bytes per second that each rank attains in collectives."""
        return self.attained * self.in_collectives


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One rank's device and the network around it.

    peak_flops: dense peak of matrix products by data type, FLOP/s; the keys are names of torch's types, "bfloat16".
    matmul_fraction, attention_fraction: the share of the peak that large matrix products, and fused attention, attain.
    compute_share: the share of the multiprocessors that computation has, where communication kernels hold the others.
    memory_bandwidth, memory_fraction: bytes per second of the device's memory, and the share that kernels attain.
    kernel_launch_s: what a kernel takes however little it does.
    host_read_s: time until the host has a value of the device (the device idles meanwhile).
    inside, between: the link to a rank of the same node, and of another node.
    ranks_per_node: how many ranks share a node.
    collective_start_s: what a collective takes on the link before the first byte moves.
    collective_issue_s: time that the issuing thread spends to start a collective.
    interference: by how much longer computation takes while a transfer moves: 0.16 is 16%; what compute_share takes is
        not in it.
    in_flight: how many transfers of one process group move at a time, sharing the link; NCCL: 1, gloo: 2.
    sources: where the numbers come from, by field name.

    >>> Hardware(name="toy", peak_flops={"float32": 1e12}, memory_bandwidth=1e11, inside=Link(1e10)).peak("float32")
    700000000000.0
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    inside: Link
    between: Link | None = None
    ranks_per_node: int = 8
    matmul_fraction: float = 0.7
    attention_fraction: float = 0.6
    compute_share: float = 1.0
    memory_fraction: float = 0.85
    kernel_launch_s: float = 3e-6
    host_read_s: float = 15e-6
    collective_start_s: float = 8e-6
    collective_issue_s: float = 10e-6
    interference: float = 0.0
    in_flight: int = 1
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(
            f"hardware {self.name!r}",
            self,
            positive=("memory_bandwidth",),
            times=("kernel_launch_s", "host_read_s", "collective_start_s", "collective_issue_s"),
            shares=("interference",),
            fractions=("matmul_fraction", "attention_fraction", "compute_share", "memory_fraction"),
        )
        for count in ("ranks_per_node", "in_flight"):
            value = getattr(self, count)
            if not isinstance(value, int) or value < 1:
                raise CostError(f"hardware {self.name!r}: {count} is {value!r}: give a number, 1 or more")
        if not self.peak_flops or not all(_is_number(peak) and peak > 0 for peak in self.peak_flops.values()):
            raise CostError(
                f"hardware {self.name!r}: peak_flops is {dict(self.peak_flops)}: give FLOP/s by data type, such as "
                '{"bfloat16": 989e12}'
            )
        for field in ("peak_flops", "sources"):  # the caller's dictionaries stay the caller's
            object.__setattr__(self, field, dict(getattr(self, field)))

    @property
    def outside(self) -> Link:
        """The link between nodes; the one inside a node where no other is given."""
        return self.inside if self.between is None else self.between

    @property
    def memory_attained(self) -> float:
        """Bytes per second that kernels attain."""
        return self.memory_bandwidth * self.memory_fraction

    def peak(self, dtype: str, *, attention: bool = False) -> float:
        """FLOP/s that large matrix products of a data type attain; of float16 and bfloat16 one stands for both.

        Raises:
            CostError: there is no peak for the type.
        """
        twin = {"float16": "bfloat16", "bfloat16": "float16", "float8_e5m2": "float8_e4m3fn"}.get(dtype, "")
        peak = self.peak_flops.get(dtype, self.peak_flops.get(twin))
        if peak is None:
            raise CostError(
                f"hardware {self.name!r} has no peak for {dtype}, only for {', '.join(self.peak_flops)}: add it with "
                f'dataclasses.replace(hardware, peak_flops={{**hardware.peak_flops, "{dtype}": ...}})'
            )
        return peak * self.compute_share * (self.attention_fraction if attention else self.matmul_fraction)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> "Hardware":
        """Read a description; the module's docstring shows one.

        Raises:
            CostError: the file is not there, is no TOML, or lacks or misspells a field.
        """
        try:
            data: dict[str, Any] = parse_toml(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CostError(f"cannot read hardware from {path}: {error}") from error
        if isinstance(data.get("hardware"), dict):
            data = data["hardware"]
        try:
            for field in ("inside", "between"):
                if field in data:
                    data[field] = Link(**data[field])
            return cls(**data)
        except (TypeError, AttributeError) as error:  # a missing or unknown field, or a number instead of a table
            fields = ", ".join(field.name for field in dataclasses.fields(cls))
            raise CostError(f"{path} does not describe hardware: {error}; the fields are {fields}") from error
        except CostError as error:
            raise CostError(f"{path}: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check(
    what: str,
    values: Any,
    *,
    positive: tuple[str, ...],
    times: tuple[str, ...],
    fractions: tuple[str, ...],
    shares: tuple[str, ...] = (),
) -> None:
    rules: tuple[tuple[tuple[str, ...], str, Callable[[float], bool]], ...] = (
        (positive, "a positive number of bytes or FLOP per second", lambda number: number > 0),
        (times, "seconds, not negative", lambda number: number >= 0),
        (shares, "a share, not negative", lambda number: number >= 0),
        (fractions, "a share of a peak, above 0 and at most 1", lambda number: 0 < number <= 1),
    )
    for names, wanted, holds in rules:
        for name in names:
            number = getattr(values, name)
            if not _is_number(number) or not holds(number):
                raise CostError(f"{what}: {name} is {number!r}: give {wanted}")
