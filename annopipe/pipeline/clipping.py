"""Clip the gradients of a pipeline by their norm over all its ranks."""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from annopipe.errors import PipelineError
from annopipe.graphs.distributed_tensors import is_distributed_tensor
from annopipe.pipeline.pipeline import Pipeline

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(
    pipe: Pipeline,
    max_norm: float,
    norm_type: float = 2.0,
    *,
    sharded: Iterable[nn.Parameter] = (),
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """As ``torch.nn.utils.clip_grad_norm_`` on the unsplit model; every rank of the pipeline calls it.

    Args:
        pipe: tied parameters count once.
        max_norm: gradients are scaled down to this norm when theirs is larger.
        norm_type: of the norm; may be infinite.
        sharded: parameters of which each rank of ``group`` holds another part, such as experts; the others are
            the same on all ranks of ``group``, their gradients too.
        group: the expert-parallel ranks.

    Returns:
        The norm before clipping, the same on every rank.

    Raises PipelineError for sharded parameters without a group, for ranks that clip differently, and when a rank does
    not come within the timeout of the pipeline.

    >>> import annopipe as ap
    >>> stage = nn.Linear(2, 1, bias=False)
    >>> pipe = ap.Pipeline([stage], ap.schedule("gpipe", ranks=1, microbatches=1), loss_fn=lambda out, _: out.sum())
    >>> losses = pipe.step(torch.tensor([[3.0, 4.0]]))
    >>> clip_grad_norm_(pipe, 1.0), stage.weight.grad
    (tensor(5., dtype=torch.float64), tensor([[0.6000, 0.8000]]))
    """
    if not isinstance(pipe, Pipeline):
        raise PipelineError(
            f"clip_grad_norm_ takes the Pipeline, got {type(pipe).__name__}: its parameters are on several ranks"
        )
    parts, peers = set(sharded), pipe.runner.peers
    with peers.calling("clip_grad_norm_", f"max_norm={float(max_norm)}, norm_type={float(norm_type)}"):
        if parts and group is None:
            raise PipelineError("clip_grad_norm_: sharded parameters need the group whose ranks hold the other parts")
        peers.agree("")
        peers.include([group] if group is not None else [])
        peers.include(_groups_of(pipe.parameters()))
        counted = [p for _, p in pipe.named_parameters(counted=True) if p.grad is not None]
        apart = _power([p for p in counted if p in parts], norm_type)
        whole = _power([p for p in counted if p not in parts], norm_type)
        operation = dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM
        if group is not None:
            apart = peers.reduce(apart, operation, group, "add up the norm of sharded gradients")
        total = torch.maximum(apart, whole) if math.isinf(norm_type) else apart + whole
        if pipe.group is not None:
            total = peers.reduce(total, operation, pipe.group, "add up the norm of gradients")
    norm = total if math.isinf(norm_type) else total ** (1.0 / norm_type)
    for parameters in _by_layout(pipe.parameters()):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _by_layout(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters in groups that operations on lists take: plain tensors, and DTensors of one mesh and placement."""
    found: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = (parameter.device_mesh, parameter.placements) if is_distributed_tensor(parameter) else None
        found.setdefault(key, []).append(parameter)
    return list(found.values())


def _groups_of(parameters: Iterable[nn.Parameter]) -> list[dist.ProcessGroup]:
    """The groups of the meshes that DTensors are on: adding up their norm communicates."""
    meshes = dict.fromkeys(p.device_mesh for p in parameters if is_distributed_tensor(p))
    return [group for mesh in meshes for group in mesh.get_all_groups()]


def _power(parameters: list[nn.Parameter], norm_type: float) -> torch.Tensor:
    """The sum of absolute values to the power of the norm, or the largest; in float64, on the gradients' device.

    Of DTensors over all ranks that hold their shards.
    """
    total = torch.zeros((), dtype=torch.float64)
    for alike in _by_layout(parameters):
        gradients = [parameter.grad for parameter in alike if parameter.grad is not None]
        if not gradients:
            continue
        found = torch.nn.utils.get_total_norm(gradients, norm_type)
        norm = (found.full_tensor() if is_distributed_tensor(found) else found).to(torch.float64)
        total = total.to(norm.device)
        total = torch.maximum(total, norm) if math.isinf(norm_type) else total + norm**norm_type
    return total
