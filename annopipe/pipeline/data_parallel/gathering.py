"""How a sharded parameter is read: gathered in a forward and in a backward, as it is elsewhere."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from annopipe.graphs.distributed_tensors import Layout, local_part

__all__ = ["Reads"]


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Over which dimensions of the mesh a parameter is sharded and repeated, in which types, and the divisor."""

    sharded: DeviceMesh | None
    repeated: DeviceMesh | None
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    divide_by: int

    def gathered(self, parameter: DTensor) -> torch.Tensor:
        """The whole parameter."""
        local = local_part(parameter)
        if self.param_dtype is not None and local.is_floating_point():
            local = local.to(self.param_dtype)
        if self.sharded is None or not parameter.dim():
            return local.view_as(local)
        layout = Layout(self.sharded, (Shard(0),), parameter.shape, parameter.stride())
        return layout.wrap(local).redistribute(placements=[Replicate()]).to_local()

    def reduced(self, gradient: torch.Tensor, like: Layout, dtype: torch.dtype) -> DTensor:
        """The gradient of the parameter from that of the whole one, which every rank has another part of."""
        local = gradient.to(self.reduce_dtype or dtype)
        if self.sharded is not None:
            local = _summed(local, self.sharded, Shard(0) if like.shape else Replicate())
        if self.repeated is not None:
            local = _summed(local, self.repeated, Replicate())
        local = local.to(dtype)
        return like.wrap(local if self.divide_by == 1 else local / self.divide_by)


def _summed(local: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> torch.Tensor:
    partial = DTensor.from_local(local, mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=[placement]).to_local()


class _Gather(torch.autograd.Function):
    """Differentiable reading."""

    @staticmethod
    def forward(ctx: Any, parameter: DTensor, settings: _Settings) -> torch.Tensor:
        ctx.settings, ctx.layout, ctx.dtype = settings, Layout.of(parameter), parameter.dtype
        return settings.gathered(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[DTensor, None]:
        return ctx.settings.reduced(gradient, ctx.layout, ctx.dtype), None


def _gathered(parameter: DTensor, settings: _Settings) -> Any:
    return _Gather.apply(parameter, settings)  # type: ignore[no-untyped-call]


class Reads:
    """Reads the parameters of one call of ``shard``.

    While a forward runs, each parameter is gathered once.

    Args:
        sharded, repeated: the dimensions of the mesh along which parameters are sharded and repeated; None where
            they are not.
    """

    def __init__(
        self,
        sharded: DeviceMesh | None,
        repeated: DeviceMesh | None,
        param_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        divide_by: int,
    ) -> None:
        self._settings = _Settings(sharded, repeated, param_dtype, reduce_dtype, divide_by)
        self._depth = 0
        self._gathered: dict[tuple[int, bool, bool], torch.Tensor] = {}

    def distributed(self, parameter: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
        """The parameter as a DTensor on the whole mesh, with the values of the mesh's first rank."""
        sharded = Shard(0) if parameter.dim() else Replicate()
        known = ((self._settings.repeated, Replicate()), (self._settings.sharded, sharded))
        placements = [placement for dimension, placement in known if dimension is not None]
        made = nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements), parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        return made

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """While a forward runs."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._gathered.clear()

    def read(self, parameter: Any) -> Any:
        """The whole parameter in a forward or backward; the parameter itself elsewhere."""
        if not isinstance(parameter, DTensor):
            return parameter
        if torch.compiler.is_dynamo_compiling():
            return _gathered(parameter, self._settings)
        if not self._depth:
            in_backward = torch._C._current_graph_task_id() != -1  # a checkpoint computes again
            return _gathered(parameter, self._settings) if in_backward else parameter
        key = id(parameter), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if key not in self._gathered:
            self._gathered[key] = _gathered(parameter, self._settings)
        return self._gathered[key]
