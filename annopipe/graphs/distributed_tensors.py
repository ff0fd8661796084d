"""Parameters and buffers that are DTensors: graphs take their local tensors, and forward sees DTensors.

needs       a module whose parameters and buffers are plain tensors or DTensors.
does        for tracing, puts plain local tensors in the places of DTensors; inside the traced call, wraps them again.
guarantees  one port for each parameter, of its local part; gradients come in the placement of the parameter, whatever
            redistribution that takes (a graph node); the module is put back as it was.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Placement
from torch.nn.parallel import DistributedDataParallel

from annopipe.errors import CaptureError
from annopipe.graphs.cleanup import BOUNDARY_KEY

__all__ = [
    "DistributedTensors",
    "Layout",
    "is_distributed_tensor",
    "layouts",
    "local_part",
    "refuse_wrapped_modules",
    "wrapped_gradients",
]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a DTensor lies on its mesh."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: DTensor) -> "Layout":
        """The layout of a DTensor."""
        return cls(tensor.device_mesh, tuple(tensor.placements), tensor.shape, tensor.stride())

    def wrap(self, local: torch.Tensor) -> DTensor:
        """The DTensor of which ``local`` is this rank's part."""
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )


def is_distributed_tensor(value: Any) -> TypeGuard[DTensor]:
    """Whether it is a DTensor."""
    return isinstance(value, DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, without history and in the same memory; another tensor is itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local().detach()


def layouts(module: nn.Module) -> dict[str, Layout]:
    """The layout of each parameter and buffer that is a DTensor, by each of its names."""
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: Layout.of(tensor) for name, tensor in named if isinstance(tensor, DTensor)}


def refuse_wrapped_modules(module: nn.Module) -> None:
    """Refuse data parallelism that works by hooks and not by operations of the forward.

    Raises CaptureError with what to do instead.
    """
    wrapped = (
        (DistributedDataParallel, "DistributedDataParallel", 'ap.shard(module.module, mesh, mode="replicate")'),
        (FullyShardedDataParallel, "FullyShardedDataParallel", "ap.shard(the module that it wraps, mesh)"),
        (FSDPModule, "sharded by fully_shard", "ap.from_fully_shard(module) after it"),
        (nn.DataParallel, "DataParallel", 'ap.shard(module.module, mesh, mode="replicate")'),
    )
    for name, child in module.named_modules():
        for kind, told, instead in wrapped:
            if isinstance(child, kind):
                raise CaptureError(
                    f"{name or 'the module'} is {told}: it communicates in hooks, which no graph has; use {instead}"
                )


Place = tuple[dict[str, Any], str]  # a module's table of parameters or buffers, and a name in it


class DistributedTensors:
    """The DTensors among a module's parameters and buffers.

    Raises CaptureError for one that cannot be a parameter: a sum that is still spread over the ranks.
    """

    def __init__(self, module: nn.Module) -> None:
        self._found: list[tuple[DTensor, Layout, list[Place]]] = []
        by_id: dict[int, list[Place]] = {}
        for name, child in module.named_modules():
            for table in (child._parameters, child._buffers):
                for key, tensor in table.items():
                    if not isinstance(tensor, DTensor):
                        continue
                    if any(placement.is_partial() for placement in tensor.placements):
                        raise CaptureError(
                            f"{key} of {name or 'the module'} is a DTensor placed {tensor.placements}, a sum that is "
                            "still spread over the ranks: redistribute it to Replicate or Shard first"
                        )
                    if id(tensor) not in by_id:
                        by_id[id(tensor)] = []
                        self._found.append((tensor, Layout.of(tensor), by_id[id(tensor)]))
                    by_id[id(tensor)].append((table, key))

    @contextlib.contextmanager
    def as_local(self) -> Iterator[None]:
        """The module with plain tensors in their places."""
        locals_: list[torch.Tensor] = []
        for tensor, _, _ in self._found:
            local = local_part(tensor)
            is_parameter = isinstance(tensor, nn.Parameter)
            locals_.append(nn.Parameter(local, tensor.requires_grad) if is_parameter else local)
        with self._replaced(locals_):
            yield

    @contextlib.contextmanager
    def wrapped(self) -> Iterator[None]:
        """The module, which has plain tensors in their places, with DTensors there that are made of these."""
        made: list[torch.Tensor] = []
        for _, layout, ((table, key), *_) in self._found:
            with fx_traceback.annotate({BOUNDARY_KEY: True}):
                made.append(layout.wrap(table[key]))
        with self._replaced(made):
            yield

    @contextlib.contextmanager
    def _replaced(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        places = [(place, new) for (_, _, where), new in zip(self._found, tensors, strict=True) for place in where]
        before = [table[key] for (table, key), _ in places]
        try:
            for (table, key), new in places:
                table[key] = new
            yield
        finally:
            for ((table, key), _), old in zip(places, before, strict=True):
                table[key] = old


def wrapped_gradients(gradients: Mapping[str, torch.Tensor], known: Mapping[str, Layout]) -> dict[str, torch.Tensor]:
    """Gradients of parameters by name, those of DTensors as DTensors of the same placement."""
    return {name: known[name].wrap(value) if name in known else value for name, value in gradients.items()}
