"""Adapter: what a module is made of now, found in one walk over its tables (private in torch.nn).

A step asks this of each stage before anything else, so it has to be quick: ``named_parameters`` and its like walk the
module once each, and pass every name through as many generators as it has dots.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import nn

from annopipe.graphs.distributed_tensors import Layout, is_distributed_tensor

__all__ = ["ModuleState", "state_of"]


@dataclasses.dataclass(frozen=True)
class ModuleState:
    """A module at one moment.

    modules: itself and those in it, by their names with a dot behind, "" for itself.
    tensors: its parameters and buffers by name, tied ones under each of their names.
    key: what decides whether the graphs of the module still hold: modes, names, kinds, which are tied, and autocast.
    """

    modules: Sequence[tuple[str, nn.Module]]
    tensors: Mapping[str, torch.Tensor]
    key: Hashable


def state_of(module: nn.Module) -> ModuleState:
    """The state of a module.

    >>> module = nn.Linear(2, 3)
    >>> before = state_of(module)
    >>> sorted(before.tensors)
    ['bias', 'weight']
    >>> before.key == state_of(module).key, before.key == state_of(module.eval()).key
    (True, False)
    """
    tensors: dict[str, torch.Tensor] = {}
    modules: list[tuple[str, nn.Module]] = []
    pending = [("", module)]
    while pending:
        prefix, child = pending.pop()
        modules.append((prefix, child))
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    tensors[prefix + name] = tensor
        for name, inner in child._modules.items():
            if inner is not None:
                pending.append((f"{prefix}{name}.", inner))
    kinds = tuple([(t.dtype, t.shape, t.device, t.requires_grad, _layout(t)) for t in tensors.values()])
    first: dict[int, int] = {}
    places = [first.setdefault(id(tensor), at) for at, tensor in enumerate(tensors.values())]
    tied = tuple([pair for pair in enumerate(places) if pair[0] != pair[1]])
    modes = tuple([child.training for _, child in modules])
    return ModuleState(modules, tensors, (modes, tuple(tensors), kinds, tied, _casts(tensors)))


def _layout(tensor: torch.Tensor) -> Hashable:
    """How a DTensor lies on its mesh, which decides what its graphs communicate; the type of another tensor."""
    return Layout.of(tensor) if is_distributed_tensor(tensor) else type(tensor)


def _casts(tensors: Mapping[str, torch.Tensor]) -> Hashable:
    devices = sorted({"cpu", *{tensor.device.type for tensor in tensors.values()}} - {"meta"})
    found = [(name, torch.get_autocast_dtype(name)) for name in devices if torch.is_autocast_enabled(name)]
    return tuple(found), torch.get_default_dtype()
