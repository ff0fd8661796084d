"""Rotary position embedding (arXiv 2104.09864): pairs of values turn by an angle that grows with the position.

Published models pair either neighbouring values (DeepSeek) or the two halves of a head (Mixtral, Qwen3).
"""

import torch
from torch import Tensor

__all__ = ["rotate", "rotate_halves", "turns"]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of neighbouring values by its angle.

    Args:
        x: [..., sequence, width]; the result has its dtype.
        cos, sin: [sequence, width / 2], of at least float32.

    >>> rotate(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0]])).tolist()
    [[-2.0, 1.0]]
    """
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn value i of the first half with value i of the second by its angle; arguments as for ``rotate``.

    >>> quarter = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    >>> rotate_halves(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), *quarter).tolist()
    [[-3.0, -4.0, 1.0, 2.0]]
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


def turns(sequence: int, width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency: [sequence, width / 2]; frequency i is ``theta ** (-2 i / width)``.

    Angles are computed in float64, since a large position times a frequency loses digits in float32, and rounded once:
    to float32, or to the dtype of ``like`` where that is wider.
    """
    exponent = torch.arange(0, width, 2, device=like.device, dtype=torch.float64) / width
    angle = torch.outer(torch.arange(sequence, device=like.device, dtype=torch.float64), theta**-exponent)
    dtype = torch.promote_types(like.dtype, torch.float32)
    return angle.cos().to(dtype), angle.sin().to(dtype)
