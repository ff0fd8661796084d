"""The gradients of one step by themselves, apart from those that were there before it."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

__all__ = ["gradients_apart"]


@contextlib.contextmanager
def gradients_apart(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, ``param.grad`` holds what comes inside; afterwards it is added to what was there before.

    Earlier gradients stay as they are to the last bit, whatever is done to those inside, and when it fails.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> weight.grad = torch.tensor([0.1])
    >>> with gradients_apart([weight]):
    ...     weight.grad = torch.tensor([9.0])
    ...     weight.grad /= 3
    >>> weight.grad
    tensor([3.1000])
    """
    before: dict[nn.Parameter, torch.Tensor | None] = {parameter: parameter.grad for parameter in parameters}
    for parameter in before:
        parameter.grad = None
    try:
        yield
    except BaseException:
        for parameter, earlier in before.items():
            parameter.grad = earlier
        raise
    for parameter, earlier in before.items():
        more = parameter.grad
        parameter.grad = earlier if more is None else more if earlier is None else earlier.add_(more)
