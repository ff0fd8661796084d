"""How a sharded parameter is read: gathered in a forward and in a backward, as it is elsewhere."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from annopipe.errors import PipelineError
from annopipe.graphs.distributed_tensors import Layout, local_part

__all__ = ["Made", "Reads", "Sharing", "Within", "made_of"]

_MADE = "_annopipe_made"


@dataclasses.dataclass(frozen=True)
class Within:
    """A parameter that other ranks share in another way, too, as tensor parallelism does.

    Attributes:
        layout: of the DTensor that a forward reads.
        shape, stride: of this rank's part of it.
    """

    layout: Layout
    shape: torch.Size
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How data-parallel ranks share a parameter.

    Attributes:
        sharded, repeated: the dimensions of the mesh along which it is sharded and repeated; None where they do not.
        param_dtype: what it is gathered in; None is its own.
        reduce_dtype: what gradients are added up over ranks in; None is the parameter's own.
        divide_by: what the sum over the ranks is divided by.
        dim: the dimension of the parameter that is shared.
        within: what else shares it.
    """

    sharded: DeviceMesh | None
    repeated: DeviceMesh | None
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    divide_by: float
    dim: int = 0
    within: Within | None = None

    def gathered(self, parameter: DTensor) -> torch.Tensor:
        """All that the data-parallel ranks have of it."""
        local = local_part(parameter)
        if self.param_dtype is not None and local.is_floating_point():
            local = local.to(self.param_dtype)
        if self.sharded is None or not parameter.dim():
            return local.view_as(local)
        whole: Any = self.within or parameter
        stride = whole.stride if self.within is not None else parameter.stride()
        layout = Layout(self.sharded, (Shard(self.dim),), whole.shape, stride)
        return layout.wrap(local).redistribute(placements=[Replicate()]).to_local()

    def reduced(self, gradient: torch.Tensor, like: Layout, dtype: torch.dtype) -> DTensor:
        """The gradient of the parameter from that of the whole one, which every rank has another part of.

        Raises PipelineError for a sparse one.
        """
        if not torch.compiler.is_dynamo_compiling() and gradient.layout is not torch.strided:
            raise PipelineError(
                f"a sharded parameter of shape {tuple(like.shape)} has a sparse gradient, as an embedding with "
                "sparse=True gives it, and ranks add up dense ones: make it with sparse=False, or leave the parameter "
                "alone with ap.shard(ignore=...)"
            )
        local = gradient.to(self.reduce_dtype or dtype)
        before = _divided_before(self.divide_by) if local.dtype == torch.float16 else 1
        if before != 1:
            local = local / before
        if self.sharded is not None:
            local = _summed(local, self.sharded, Shard(self.dim) if like.shape else Replicate())
        if self.repeated is not None:
            local = _summed(local, self.repeated, Replicate())
        local = local.to(dtype)
        after = self.divide_by / before
        return like.wrap(local if after == 1 else local / after)


def _divided_before(factor: float) -> int:
    """The part of a divisor that comes before the sum, so that float16 does not overflow: as FSDP has it."""
    before = 1
    while factor % before == 0 and factor / before > before:
        before *= 2
    return before


def _summed(local: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> torch.Tensor:
    partial = DTensor.from_local(local, mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=[placement]).to_local()


class _Gather(torch.autograd.Function):
    """Differentiable reading."""

    @staticmethod
    def forward(ctx: Any, parameter: DTensor, settings: Sharing) -> torch.Tensor:
        ctx.settings, ctx.layout, ctx.dtype = settings, Layout.of(parameter), parameter.dtype
        return settings.gathered(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[DTensor, None]:
        return ctx.settings.reduced(gradient, ctx.layout, ctx.dtype), None


def _gathered(parameter: DTensor, settings: Sharing) -> Any:
    whole = _Gather.apply(parameter, settings)  # type: ignore[no-untyped-call]
    return whole if settings.within is None else settings.within.layout.wrap(whole)


@dataclasses.dataclass(frozen=True)
class Made:
    """What a plain parameter was made into: noted on it, since other modules may still have it."""

    parameter: nn.Parameter
    mesh: DeviceMesh
    sharing: Sharing


def made_of(parameter: torch.Tensor) -> Made | None:
    """What ``shard`` has made of a plain parameter, if it has."""
    found: Made | None = parameter.__dict__.get(_MADE)
    return found


class Reads:
    """Reads the parameters of one call of ``shard``.

    While a forward runs, each parameter is gathered once.

    Attributes:
        sharing: as given.
    """

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self._depth = 0
        self._gathered: dict[tuple[int, bool, bool], torch.Tensor] = {}

    def distributed(self, parameter: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
        """The parameter as a DTensor on the whole mesh, with the values of the mesh's first rank.

        The same one where an earlier call has made it, for a module that shares the parameter.

        Raises PipelineError for one that an earlier call has made with other options.
        """
        if (earlier := made_of(parameter)) is not None:
            if earlier.mesh != mesh or earlier.sharing != self.sharing:
                raise PipelineError(
                    f"shard: a parameter of shape {tuple(parameter.shape)} is that of another module, too, which was "
                    "sharded before with other options: give both the same"
                )
            return earlier.parameter
        sharded = Shard(0) if parameter.dim() else Replicate()
        known = ((self.sharing.repeated, Replicate()), (self.sharing.sharded, sharded))
        placements = [placement for dimension, placement in known if dimension is not None]
        made = nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements), parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        parameter.__dict__[_MADE] = Made(made, mesh, self.sharing)
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
            return _gathered(parameter, self.sharing)
        if not self._depth:
            in_backward = torch._C._current_graph_task_id() != -1  # a checkpoint computes again
            return _gathered(parameter, self.sharing) if in_backward else parameter
        key = id(parameter), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if key not in self._gathered:
            self._gathered[key] = _gathered(parameter, self.sharing)
        return self._gathered[key]
