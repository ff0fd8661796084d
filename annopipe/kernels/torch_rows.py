"""The row operations by PyTorch's own: what runs on the CPU, and what the kernels are compared with.

Sums are taken in the type of the rows or of the weights, whichever is wider.
"""

import torch
from torch import Tensor

__all__ = ["permute", "row_products", "unpermute"]


def permute(x: Tensor, weights: Tensor | None, source: Tensor, top_k: int) -> Tensor:
    """``out[i] = weights[source[i]] * x[source[i] // top_k]``: x [tokens, width] to [tokens * top_k, width]."""
    out = x.index_select(0, source if top_k == 1 else source // top_k)
    if weights is None:
        return out
    wide = torch.promote_types(x.dtype, weights.dtype)
    return (out.to(wide) * weights.reshape(-1, 1).index_select(0, source).to(wide)).to(x.dtype)


def unpermute(rows: Tensor, weights: Tensor | None, target: Tensor, top_k: int) -> Tensor:
    """The sum over k of ``weights[t, k] * rows[target[t, k]]``: [tokens * top_k, width] to [tokens, width]."""
    slots = _slots(rows, target, top_k)
    if weights is None:
        return slots.sum(1) if top_k > 1 else slots.squeeze(1)
    wide = torch.promote_types(rows.dtype, weights.dtype)
    return torch.bmm(weights.reshape(-1, 1, top_k).to(wide), slots.to(wide)).squeeze(1).to(rows.dtype)


def row_products(x: Tensor, rows: Tensor, target: Tensor, top_k: int, dtype: torch.dtype) -> Tensor:
    """``out[t, k]`` is the product of ``x[t]`` and ``rows[target[t, k]]``: [tokens, top_k] of type ``dtype``."""
    wide = torch.promote_types(x.dtype, dtype)
    slots = _slots(rows, target, top_k).to(wide)
    return torch.bmm(x.unsqueeze(1).to(wide), slots.transpose(1, 2)).squeeze(1).to(dtype)


def _slots(rows: Tensor, target: Tensor, top_k: int) -> Tensor:
    return rows.index_select(0, target).view(target.shape[0] // top_k, top_k, rows.shape[1])
