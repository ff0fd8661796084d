"""Grouped matrix products by PyTorch's own operations: on the CPU, and where our kernels are not (implementation.py).

On CUDA with bfloat16 and 16-byte aligned rows this is ``torch.nn.functional.grouped_mm`` (nothing is read by the host);
elsewhere a loop that reads the group sizes inside the operation.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from annopipe.errors import GraphError

__all__ = ["product", "weight_grad"]


def product(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """X [rows, in], weight [experts, in, out], counts int64 [experts], to [rows, out]."""
    if _has_kernel(x, weight):
        return F.grouped_mm(x.contiguous(), weight, offs=_ends(counts))
    out = x.new_empty((x.shape[0], weight.shape[2]))
    for expert, rows in _groups(counts, x.shape[0]):
        torch.mm(x[rows], weight[expert], out=out[rows])
    return out


def weight_grad(x: Tensor, grad: Tensor, counts: Tensor) -> Tensor:
    """X [rows, in], grad [rows, out], counts int64 [experts], to [experts, in, out]."""
    if _has_kernel(x, grad):
        out = F.grouped_mm(x.contiguous().t(), grad.contiguous(), offs=_ends(counts))
        return out.masked_fill_((counts == 0).view(-1, 1, 1), 0)
    out = x.new_zeros((counts.shape[0], x.shape[1], grad.shape[1]))
    for expert, rows in _groups(counts, x.shape[0]):
        torch.mm(x[rows].t(), grad[rows], out=out[expert])
    return out


def _groups(counts: Tensor, rows: int) -> list[tuple[int, slice]]:
    """(expert, its rows) for every expert that has rows."""
    sizes = counts.tolist()
    if sum(sizes) != rows or min(sizes, default=0) < 0:
        raise GraphError(
            f"grouped_mm: counts {sizes} add to {sum(sizes)}, x has {rows} rows: give how many rows each expert has, "
            "from 0, which add to all of them"
        )
    ends = list(accumulate(sizes))
    return [(e, slice(end - size, end)) for e, (size, end) in enumerate(zip(sizes, ends, strict=True)) if size]


def _has_kernel(x: Tensor, other: Tensor) -> bool:
    """Whether one kernel does it: CUDA capability 8.0, bfloat16, rows of whole 16 bytes, and not none of them."""
    aligned = x.shape[-1] % 8 == 0 and other.shape[-1] % 8 == 0
    if not x.is_cuda or x.dtype != torch.bfloat16 or not aligned or x.shape[0] == 0:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)
