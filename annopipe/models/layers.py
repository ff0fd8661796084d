"""The gated feed-forward that dense blocks and shared experts use."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SwiGLU"]


class SwiGLU(nn.Module):
    """The gated feed-forward ``down(silu(gate(x)) * up(x))`` (arXiv 2002.05202), without biases.

    Args:
        hidden: width of input and output.
        intermediate: inner width.

    >>> SwiGLU(8, 16)(torch.ones(3, 8)).shape
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
        self.gate = nn.Linear(hidden, intermediate, bias=False, device=device, dtype=dtype)
        self.up = nn.Linear(hidden, intermediate, bias=False, device=device, dtype=dtype)
        self.down = nn.Linear(intermediate, hidden, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out
