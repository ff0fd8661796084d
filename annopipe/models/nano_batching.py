"""Run a part of a model on nano-batches, each in a lane of its own, and join what comes out."""

from collections.abc import Callable

import torch
from torch import Tensor

from annopipe.annotate import nano_batches

__all__ = ["split_forward"]


def split_forward(forward: Callable[[Tensor], Tensor], x: Tensor, parts: int) -> Tensor:
    """What ``forward`` makes of so many parts of the rows of ``x``, joined; of each row alone where there are fewer.

    >>> split_forward(lambda part: part * 2, torch.arange(3), 2).tolist()
    [0, 2, 4]
    """
    parts = min(parts, x.shape[0])
    return forward(x) if parts <= 1 else torch.cat([forward(part) for part in nano_batches(x, parts)])
