"""Matrix products of rows grouped by expert, without a host read of the group sizes.

    y = grouped_mm(x, weight, counts)       # rows of expert e:  y_e = x_e @ weight[e]

Two operations, so that in a backward graph the two halves of the gradient are two nodes: ``annopipe::grouped_mm`` with
the transposed weight gives the gradient of the rows, ``annopipe::grouped_mm_weight_grad`` the gradient of the weight,
and a split backward can postpone the second.

On CUDA with bfloat16 and 16-byte aligned rows both are ``torch._grouped_mm`` (one kernel, nothing read by the host);
elsewhere a loop over the experts that reads the sizes inside the operation.
"""

from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from annopipe.errors import GraphError

__all__ = ["grouped_mm", "grouped_mm_weight_grad"]


def grouped_mm(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Multiply each expert's rows by its matrix.

    Args:
        x: [rows, in], sorted by expert.
        weight: [experts, in, out].
        counts: int64 [experts] that add to ``rows``; zeros are fine.

    Returns:
        [rows, out]. Differentiable in ``x`` and ``weight``; an expert without rows gets a gradient of exact zeros.

    Raises:
        GraphError: shapes or counts that do not fit (counts are checked on the CPU only: checking costs a host read).

    >>> grouped_mm(torch.ones(3, 1), torch.tensor([[[2.0]], [[5.0]]]), torch.tensor([1, 2])).flatten().tolist()
    [2.0, 5.0, 5.0]
    """
    return cast(Tensor, torch.ops.annopipe.grouped_mm(x, weight, counts))


def grouped_mm_weight_grad(x: Tensor, grad: Tensor, counts: Tensor) -> Tensor:
    """The weight gradient of ``grouped_mm``: ``x_e.T @ grad_e`` for each expert.

    Args:
        x: [rows, in].  grad: [rows, out], the gradient at the output.  counts: int64 [experts] that add to ``rows``.

    Returns:
        [experts, in, out], exact zeros for experts without rows.
    """
    return cast(Tensor, torch.ops.annopipe.grouped_mm_weight_grad(x, grad, counts))


torch.library.define(
    "annopipe::grouped_mm", "(Tensor x, Tensor weight, Tensor counts) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
torch.library.define(
    "annopipe::grouped_mm_weight_grad",
    "(Tensor x, Tensor grad, Tensor counts) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _grouped_mm(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    _check(x, weight.shape[0], weight.shape[1], counts)
    if x.shape[0] > 0 and _has_kernel(x, weight):
        return torch._grouped_mm(x.contiguous(), weight, offs=_ends(counts))
    out = x.new_empty((x.shape[0], weight.shape[2]))
    for expert, rows in _groups(counts, x.shape[0]):
        torch.mm(x[rows], weight[expert], out=out[rows])
    return out


def _weight_grad(x: Tensor, grad: Tensor, counts: Tensor) -> Tensor:
    if x.shape[0] > 0 and _has_kernel(x, grad):
        out = torch._grouped_mm(x.contiguous().t(), grad.contiguous(), offs=_ends(counts))
        return out.masked_fill_((counts == 0).view(-1, 1, 1), 0)
    out = x.new_zeros((counts.shape[0], x.shape[1], grad.shape[1]))
    for expert, rows in _groups(counts, x.shape[0]):
        torch.mm(x[rows].t(), grad[rows], out=out[expert])
    return out


def _fake_grouped_mm(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    _check(x, weight.shape[0], weight.shape[1], counts)
    return x.new_empty((x.shape[0], weight.shape[2]))


def _fake_weight_grad(x: Tensor, grad: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty((counts.shape[0], x.shape[1], grad.shape[1]))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_mm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, counts = ctx.saved_tensors
    for_x = grouped_mm(grad, weight.transpose(1, 2), counts) if ctx.needs_input_grad[0] else None
    for_weight = grouped_mm_weight_grad(x, grad, counts) if ctx.needs_input_grad[1] else None
    return for_x, for_weight, None


def _weight_grad_backward(ctx: Any, grad_weight: Tensor) -> tuple[Tensor | None, ...]:
    x, grad, counts = ctx.saved_tensors
    for_x = grouped_mm(grad, grad_weight.transpose(1, 2), counts) if ctx.needs_input_grad[0] else None
    for_grad = grouped_mm(x, grad_weight, counts) if ctx.needs_input_grad[1] else None
    return for_x, for_grad, None


torch.library.impl("annopipe::grouped_mm", "default", _grouped_mm)
torch.library.impl("annopipe::grouped_mm_weight_grad", "default", _weight_grad)
torch.library.register_fake("annopipe::grouped_mm", _fake_grouped_mm)
torch.library.register_fake("annopipe::grouped_mm_weight_grad", _fake_weight_grad)
torch.library.register_autograd("annopipe::grouped_mm", _grouped_mm_backward, setup_context=_save)
torch.library.register_autograd("annopipe::grouped_mm_weight_grad", _weight_grad_backward, setup_context=_save)


def _check(x: Tensor, experts: int, width: int, counts: Tensor) -> None:
    if x.dim() != 2 or x.shape[1] != width or tuple(counts.shape) != (experts,):
        raise GraphError(
            f"grouped_mm: x {tuple(x.shape)} and counts {tuple(counts.shape)} do not fit a weight of "
            f"{experts} experts that take {width} values: x is [rows, {width}], counts [{experts}]"
        )


def _groups(counts: Tensor, rows: int) -> list[tuple[int, slice]]:
    """(expert, its rows) for every expert that has rows."""
    sizes = counts.tolist()
    if sum(sizes) != rows:
        raise GraphError(f"grouped_mm: counts {sizes} add to {sum(sizes)}, x has {rows} rows")
    ends = list(accumulate(sizes))
    return [(e, slice(end - size, end)) for e, (size, end) in enumerate(zip(sizes, ends, strict=True)) if size]


def _has_kernel(x: Tensor, other: Tensor) -> bool:
    """Whether ``torch._grouped_mm`` runs these as one kernel: bfloat16, rows of whole 16 bytes, capability 8.0."""
    aligned = x.shape[-1] % 8 == 0 and other.shape[-1] % 8 == 0
    return x.is_cuda and x.dtype == torch.bfloat16 and aligned and torch.cuda.get_device_capability(x.device) >= (8, 0)


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)
