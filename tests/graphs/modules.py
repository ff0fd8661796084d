"""Small modules that tests trace: a function as a module, and tensors to call it with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Function", "buffered", "leaf", "plain"]


class Function(nn.Module):
    """A module from a function of the module and its arguments; keywords become parameters, submodules or attributes.

    >>> Function(lambda self, x: x * self.scale, scale=3)(torch.tensor(2)).item()
    6
    """

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self._function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Any, *rest: Any, **named: Any) -> Any:
        return self._function(self, x, *rest, **named)


def buffered(function: Callable[..., Any], **buffers: Tensor) -> Function:
    """The same with buffers, and a linear layer from 3 to 3 as ``linear``."""
    module = Function(function, linear=nn.Linear(3, 3))
    for name, value in buffers.items():
        module.register_buffer(name, value)
    return module


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def plain(*shape: int) -> Tensor:
    """Random numbers that want none."""
    return torch.randn(*shape)
