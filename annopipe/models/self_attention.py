"""Plain multi-head attention and the feed-forward with GELU, biases everywhere: the parts of a dense transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GELUFeedForward", "SelfAttention"]


class SelfAttention(nn.Module):
    """Multi-head attention; queries, keys and values come from one product.

    Args:
        hidden: width of input and output.  heads: a divisor of it.
        causal: whether a token sees those before it only.

    >>> SelfAttention(8, 2, causal=False)(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        *,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(hidden, 3 * hidden, device=device, dtype=dtype)
        self.out = nn.Linear(hidden, hidden, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same shape."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class GELUFeedForward(nn.Module):
    """``down(gelu(up(x)))``, with the approximation of GELU by tanh that GPT-2 was trained with.

    >>> GELUFeedForward(8, 16)(torch.ones(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, intermediate, device=device, dtype=dtype)
        self.down = nn.Linear(intermediate, hidden, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out
