"""Matrix products of rows grouped by expert, without a host read of the group sizes.

    y = grouped_mm(x, weight, counts)       # rows of expert e:  y_e = x_e @ weight[e]
    y = grouped_mm(x, weight, counts, sms=100)      # on a GPU: on at most 100 multiprocessors, the rest is for others

Two operations, so that in a backward graph the two halves of the gradient are two nodes: ``annopipe::grouped_mm`` with
the transposed weight gives the gradient of the rows, ``annopipe::grouped_mm_weight_grad`` the gradient of the weight,
and a split backward can postpone the second.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from annopipe.kernels import grouped_operations
from annopipe.kernels.registration import register

__all__ = ["grouped_mm", "grouped_mm_weight_grad"]


def grouped_mm(x: Tensor, weight: Tensor, counts: Tensor, sms: int = 0) -> Tensor:
    """Multiply each expert's rows by its matrix.

    Args:
        x: [rows, in], sorted by expert.
        weight: [experts, in, out].
        counts: int64 [experts] that add to ``rows``; zeros are fine.
        sms: how many multiprocessors of a GPU the kernels may occupy, here and in the backward; 0: all of them.

    Returns:
        [rows, out]. Differentiable in ``x`` and ``weight``; an expert without rows gets a gradient of exact zeros.

    Raises:
        GraphError: shapes or counts that do not fit (counts are checked on the CPU only: checking costs a host read).

    >>> grouped_mm(torch.ones(3, 1), torch.tensor([[[2.0]], [[5.0]]]), torch.tensor([1, 2])).flatten().tolist()
    [2.0, 5.0, 5.0]
    """
    return cast(Tensor, torch.ops.annopipe.grouped_mm(x, weight, counts, sms))


def grouped_mm_weight_grad(x: Tensor, grad: Tensor, counts: Tensor, sms: int = 0) -> Tensor:
    """The weight gradient of ``grouped_mm``: ``x_e.T @ grad_e`` for each expert.

    Args:
        x: [rows, in].  grad: [rows, out], the gradient at the output.  counts: int64 [experts] that add to ``rows``.
        sms: as for ``grouped_mm``.

    Returns:
        [experts, in, out], exact zeros for experts without rows.
    """
    return cast(Tensor, torch.ops.annopipe.grouped_mm_weight_grad(x, grad, counts, sms))


def _fake_product(x: Tensor, weight: Tensor, counts: Tensor, sms: int = 0) -> Tensor:
    grouped_operations.check_shapes(x, weight, counts, sms)
    return x.new_empty((x.shape[0], weight.shape[2]))


def _fake_weight_grad(x: Tensor, grad: Tensor, counts: Tensor, _sms: int = 0) -> Tensor:
    return x.new_empty((counts.shape[0], x.shape[1], grad.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch.library gives all three)
    ctx.save_for_backward(*inputs[:3])
    ctx.sms = inputs[3]


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, counts = ctx.saved_tensors
    for_x = grouped_mm(grad, weight.transpose(1, 2), counts, ctx.sms) if ctx.needs_input_grad[0] else None
    for_weight = grouped_mm_weight_grad(x, grad, counts, ctx.sms) if ctx.needs_input_grad[1] else None
    return for_x, for_weight, None, None


def _weight_grad_backward(ctx: Any, grad_weight: Tensor) -> tuple[Tensor | None, ...]:
    x, grad, counts = ctx.saved_tensors
    for_x = grouped_mm(grad, grad_weight.transpose(1, 2), counts, ctx.sms) if ctx.needs_input_grad[0] else None
    for_grad = grouped_mm(x, grad_weight, counts, ctx.sms) if ctx.needs_input_grad[1] else None
    return for_x, for_grad, None, None


register(
    "grouped_mm(Tensor x, Tensor weight, Tensor counts, int sms=0) -> Tensor",
    *(grouped_operations.product, _fake_product, _product_backward, _save),
)
register(
    "grouped_mm_weight_grad(Tensor x, Tensor grad, Tensor counts, int sms=0) -> Tensor",
    *(grouped_operations.weight_grad, _fake_weight_grad, _weight_grad_backward, _save),
)


@register_flop_formula(torch.ops.annopipe.grouped_mm)
def _product_flops(x: Any, weight: Any, _counts: Any, _sms: int = 0, *, out_shape: Any) -> int:  # noqa: ARG001 (the registry's form)
    return int(2 * x[0] * weight[1] * weight[2])


@register_flop_formula(torch.ops.annopipe.grouped_mm_weight_grad)
def _weight_grad_flops(x: Any, grad: Any, _counts: Any, _sms: int = 0, *, out_shape: Any) -> int:  # noqa: ARG001 (the registry's form)
    return int(2 * x[0] * x[1] * grad[1])
