"""``Cluster``: how many devices there are, what each can do, and how much it holds; plain data, no torch.

A TOML file names a machine of the table in machines.py, with other numbers where the cluster's differ:

    name = "ours"
    devices = 64
    memory = 80e9                # bytes of one device
    machine = "h100"
    [overrides]
    ranks_per_node = 4
    [overrides.between]
    bandwidth = 25e9

or describes the hardware in a table ``[hardware]`` with the fields of ``ap.costs.Hardware`` instead.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from annopipe.costs.hardware import Hardware, Link
from annopipe.costs.machines import machine
from annopipe.errors import CostError
from annopipe.toml_files import read_toml, refuse_unknown

__all__ = ["Cluster"]

_FIELDS = ("name", "devices", "memory", "machine", "overrides", "hardware")
_LINKS = ("inside", "between")


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """Devices that train one model together.

    Attributes:
        devices: how many there are. Neighbours fill a node before the next one begins.
        hardware: what one device can do, and the links around it.
        memory: bytes that one device holds.
        name: what tables call it.

    Raises CostError for a number that is no count or no amount.

    >>> from annopipe.costs.machines import machine
    >>> Cluster(64, machine("h100"), 80e9).nodes
    8
    """

    devices: int
    hardware: Hardware
    memory: float
    name: str = "cluster"

    def __post_init__(self) -> None:
        where = f"cluster {self.name!r}"
        if type(self.devices) is not int or self.devices < 1:
            raise CostError(f"{where}: devices is {self.devices!r}: give a whole number, 1 or more")
        if not isinstance(self.hardware, Hardware):
            raise CostError(f"{where}: hardware is {self.hardware!r}: give an annopipe.costs.Hardware")
        amount = isinstance(self.memory, (int, float)) and not isinstance(self.memory, bool)
        if not amount or not 0 < self.memory < math.inf:
            raise CostError(f"{where}: memory is {self.memory!r}: give the bytes of one device, above 0")
        per_node = self.hardware.ranks_per_node
        if self.devices > per_node and self.devices % per_node:
            raise CostError(
                f"{where}: {self.devices} devices do not fill nodes of {per_node}: give a multiple of {per_node}, or "
                "another ranks_per_node"
            )

    @property
    def nodes(self) -> int:
        """How many nodes the devices fill."""
        return -(-self.devices // self.hardware.ranks_per_node)

    def link(self, span: int) -> Link:
        """The link between neighbours in a group that spans so many neighbouring devices: of the slowest pair.

        >>> from annopipe.costs.machines import machine
        >>> Cluster(64, machine("h100"), 80e9).link(64).bandwidth
        50000000000.0
        """
        return self.hardware.inside if span <= self.hardware.ranks_per_node else self.hardware.outside

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> "Cluster":
        r"""Read a description; the module's docstring shows one.

        Raises CostError for a file that cannot be read, a field that is unknown, missing or no such value, and for
        both ``machine`` and ``hardware``.

        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "c.toml")
        ...     _ = path.write_text('devices = 16\nmemory = 80e9\nmachine = "h100"')
        ...     cluster = Cluster.from_toml(path)
        >>> cluster.name, cluster.hardware.name, cluster.nodes
        ('c', 'h100', 2)
        """
        data = read_toml(path, CostError)
        refuse_unknown(data, _FIELDS, str(path), CostError)
        for name in ("devices", "memory"):
            if name not in data:
                raise CostError(f"{path} has no {name}: give it")
        name = str(data.get("name", Path(path).stem))
        try:
            return cls(data["devices"], _hardware(data, str(path)), data["memory"], name)
        except CostError as error:
            raise error if str(error).startswith(str(path)) else CostError(f"{path}: {error}") from error


def _hardware(data: Mapping[str, Any], where: str) -> Hardware:
    if ("machine" in data) == ("hardware" in data):
        said = "both machine and" if "machine" in data else "neither machine nor"
        raise CostError(
            f'{where} has {said} [hardware]: name a machine, machine = "h100", or describe it in [hardware]; not both'
        )
    if "hardware" in data:
        if "overrides" in data:
            raise CostError(f"{where} has [overrides] beside [hardware]: write the numbers into [hardware]")
        return Hardware(**_arguments(data["hardware"], f"{where}, [hardware]", None))
    known = machine(data["machine"])
    return dataclasses.replace(known, **_arguments(data.get("overrides", {}), f"{where}, [overrides]", known))


def _arguments(table: object, where: str, known: Hardware | None) -> dict[str, Any]:
    """The fields of a table of hardware; links and peaks over those that are known."""
    if not isinstance(table, Mapping):
        raise CostError(f"{where} is {table!r}: give a table with the fields of annopipe.costs.Hardware")
    fields = [field.name for field in dataclasses.fields(Hardware)]
    refuse_unknown(table, fields, where, CostError)
    found = dict(table)
    if known is None:
        missing_is = dataclasses.MISSING
        required = [f.name for f in dataclasses.fields(Hardware) if f.default is missing_is is f.default_factory]
        if missing := [name for name in required if name not in table]:
            raise CostError(f"{where} has no {missing[0]}: give {', '.join(required)}")
    for name in (*_LINKS, "peak_flops", "sources"):
        if name in table and not isinstance(table[name], Mapping):
            raise CostError(f"{where}: {name} is {table[name]!r}: give a table")
    for name in _LINKS:
        if name in table:
            refuse_unknown(table[name], [f.name for f in dataclasses.fields(Link)], f"{where}, {name}", CostError)
            before = getattr(known, name, None)
            if before is None and "bandwidth" not in table[name]:
                raise CostError(f"{where}, {name} has no bandwidth: give bytes per second in one direction")
            found[name] = Link(**table[name]) if before is None else dataclasses.replace(before, **table[name])
    if known is not None:
        for name in ("peak_flops", "sources"):
            if name in table:
                found[name] = {**getattr(known, name), **table[name]}
    return found
