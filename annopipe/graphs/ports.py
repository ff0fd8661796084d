"""Ports: the named, typed inputs and outputs of a stage graph. Everything binds by port name, nothing by position."""

import dataclasses
from typing import Any, Literal, get_args

import torch

from annopipe.errors import GraphError

__all__ = ["Port", "Role", "port_name"]

Role = Literal[
    "param",
    "buffer",
    "input",
    "saved",
    "tangent",
    "output",
    "loss",
    "param_grad",
    "input_grad",
    "buffer_update",
    "size",
    "unsharded",
    "unreduced",
]
_ROLES = frozenset(get_args(Role))


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a stage graph.

    name: unique in its graph; "param.blocks.0.router.weight", "input.x", "saved.mul_3", "tangent.output".
    role: what the value is. "unsharded" is a parameter gathered from its shards, "unreduced" a gradient of it that is
        not yet added up over the ranks.
    source: what it belongs to: the canonical parameter or buffer name (tied weights share one), the path of an
        argument, the output that a tangent is for, or the node that a saved value comes from.
    dtype: None for a number.
    shape: the extents; a text where the extent is known only at run time. Empty for a number.
    strides: None where they are known only at run time.

    >>> Port("input.x", "input", "x", torch.float32, (2, 3)).role
    'input'
    """

    name: str
    role: Role
    source: str
    dtype: torch.dtype | None = None
    shape: tuple[int | str, ...] = ()
    device: str = ""
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise GraphError(f"port {self.name!r}: role {self.role!r} is not one of {sorted(_ROLES)}")

    @classmethod
    def of(cls, role: Role, source: str, fake: Any, *, label: str | None = None) -> "Port":
        """The port of a traced value; ``label`` replaces ``source`` in the name where ports share one source."""
        name = port_name(role, source if label is None else label)
        if isinstance(fake, torch.Tensor):
            shape = tuple(int(e) if isinstance(e, int) else str(e) for e in fake.shape)
            strides = tuple(s for s in fake.stride() if isinstance(s, int))
            known = strides if len(strides) == fake.dim() else None
            return cls(name, role, source, fake.dtype, shape, fake.device.type, known)
        return cls(name, role, source)

    def with_lane(self, lane: str) -> "Port":
        """The same port in a multiplexed graph."""
        return dataclasses.replace(self, name=f"{lane}.{self.name}")

    def mismatch(self, value: Any) -> str | None:
        """What about ``value`` does not fit this port, or None when it fits."""
        if self.dtype is None:
            fits = isinstance(value, (int, float, torch.SymInt))
            return None if fits else f"expected a number, got {type(value).__name__}"
        if not isinstance(value, torch.Tensor):
            return f"expected a tensor, got {type(value).__name__}"
        if value.dtype != self.dtype:
            return f"expected {self.dtype}, got {value.dtype}"
        if value.dim() != len(self.shape) or any(
            isinstance(want, int) and want != got for want, got in zip(self.shape, value.shape, strict=True)
        ):
            return f"expected shape {self.shape}, got {tuple(value.shape)}"
        devices = {self.device, value.device.type} - {"", "meta"}
        if len(devices) > 1:
            return f"expected a tensor on {self.device}, got one on {value.device.type}"
        return None

    def laid_out(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of this port's shape with its strides, where strides matter: ``value`` itself, or a copy.

        A port of an expanded tensor takes any: nothing that reads it was left out when it was traced.
        """
        if self.strides is None or value.numel() == 0:
            return value
        strides = zip(value.shape, value.stride(), self.strides, strict=True)
        long = [(have, want) for length, have, want in strides if length > 1]
        if all(have == want for have, want in long) or any(want == 0 for _, want in long):
            return value
        copy = torch.empty_strided(value.shape, self.strides, dtype=value.dtype, device=value.device)
        return copy.copy_(value.detach())


def port_name(role: Role, label: str) -> str:
    """``role.label``, or the role alone where there is only one value of that role (a single output, the loss)."""
    return f"{role}.{label}" if label else role
