"""What the grouped products run: shapes are checked, then our kernels compute where there are some, else PyTorch."""

from typing import cast

import torch
from torch import Tensor

from annopipe.errors import GraphError
from annopipe.kernels import torch_grouped
from annopipe.kernels.implementation import grouped_kernels, has_kernels

__all__ = ["check_shapes", "product", "weight_grad"]

_COUNTING = (torch.int64, torch.int32)


def product(x: Tensor, weight: Tensor, counts: Tensor, sms: int = 0) -> Tensor:
    """Rows x [rows, in], weight [experts, in, out], to [rows, out]."""
    check_shapes(x, weight, counts, sms)
    if has_kernels(x, weight):
        return cast(Tensor, grouped_kernels().product(x, weight, counts, sms))
    return torch_grouped.product(x, weight, counts)


def weight_grad(x: Tensor, grad: Tensor, counts: Tensor, sms: int = 0) -> Tensor:
    """Rows x [rows, in] and grad [rows, out] to [experts, in, out]."""
    if x.dim() != 2 or grad.dim() != 2 or x.shape[0] != grad.shape[0]:
        raise GraphError(
            f"grouped_mm_weight_grad: x {tuple(x.shape)} and grad {tuple(grad.shape)} do not fit: both are "
            "[rows, width], with as many rows"
        )
    _check_others("grouped_mm_weight_grad", counts, sms)
    if has_kernels(x, grad) and x.dtype == grad.dtype:
        return cast(Tensor, grouped_kernels().weight_grad(x, grad, counts, sms))
    return torch_grouped.weight_grad(x, grad, counts)


def check_shapes(x: Tensor, weight: Tensor, counts: Tensor, sms: int) -> None:
    """Refuse operands of a product that do not fit; the values of ``counts`` are not read.

    Raises:
        GraphError: naming the shapes, or the types.
    """
    if weight.dim() != 3:
        raise GraphError(
            f"grouped_mm: weight {tuple(weight.shape)} has {weight.dim()} dimensions: give [experts, in, out]"
        )
    experts, width = weight.shape[:2]
    if x.dim() != 2 or x.shape[1] != width or tuple(counts.shape) != (experts,):
        raise GraphError(
            f"grouped_mm: x {tuple(x.shape)} and counts {tuple(counts.shape)} do not fit a weight of "
            f"{experts} experts that take {width} values: x is [rows, {width}], counts [{experts}]"
        )
    if x.dtype != weight.dtype:
        raise GraphError(f"grouped_mm: x is {x.dtype} and weight {weight.dtype}: convert one of them")
    _check_others("grouped_mm", counts, sms)


def _check_others(name: str, counts: Tensor, sms: int) -> None:
    if counts.dim() != 1 or counts.dtype not in _COUNTING:
        raise GraphError(f"{name}: counts is {tuple(counts.shape)} of {counts.dtype}: give int64 (or int32) [experts]")
    if sms < 0:
        raise GraphError(f"{name}: sms is {sms}: give how many multiprocessors it may occupy, or 0 for all")
