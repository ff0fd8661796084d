"""Auxiliary losses: further losses that a module adds from inside its forward, such as a MoE layer's balance loss.

    def forward(self, x):
        route = self.router(x)
        ap.auxiliary_loss(0.01 * balance(route))
        ...

The unsplit model is trained on ``loss + sum(found)`` under ``with ap.auxiliary_losses() as found``; a pipeline
differentiates the same sum, whichever stages the auxiliary losses come from.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from annopipe.errors import GraphError

__all__ = ["auxiliary_loss", "auxiliary_losses", "auxiliary_losses_refused"]

_COLLECTED: ContextVar[list[torch.Tensor] | None] = ContextVar("auxiliary losses", default=None)
_REFUSED: ContextVar[bool] = ContextVar("auxiliary losses are refused", default=False)


def auxiliary_loss(value: torch.Tensor) -> None:
    """Add a scalar to what is differentiated, beside the loss; nothing happens where nobody collects.

    Call it in forward. What a loss is not part of (``torch.no_grad``, evaluation) can call it all the same.

    Raises:
        GraphError: the value is no scalar tensor, or the module is traced strictly.
    """
    if _REFUSED.get():
        raise GraphError("auxiliary losses are seen by direct tracing only: trace with strict=False")
    if not isinstance(value, torch.Tensor) or value.dim():
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise GraphError(f"auxiliary_loss takes one scalar tensor, got {what}: add it up first")
    collected = _COLLECTED.get()
    if collected is not None:
        collected.append(value)


@contextlib.contextmanager
def auxiliary_losses() -> Iterator[list[torch.Tensor]]:
    """Yields the list of all auxiliary losses that modules add inside, in order.

    >>> with auxiliary_losses() as found:
    ...     auxiliary_loss(torch.tensor(2.0))
    >>> sum(found)
    tensor(2.)
    """
    found: list[torch.Tensor] = []
    token = _COLLECTED.set(found)
    try:
        yield found
    finally:
        _COLLECTED.reset(token)


@contextlib.contextmanager
def auxiliary_losses_refused() -> Iterator[None]:
    """While it is open, ``auxiliary_loss`` is an error.

    It is for captures by Dynamo, which since PyTorch 2.14 reads context variables, and would take what it reads, that
    nobody collects, for granted. Up to 2.13 it stops there by itself.

    >>> with auxiliary_losses_refused():
    ...     auxiliary_loss(torch.tensor(2.0))
    Traceback (most recent call last):
    annopipe.errors.GraphError: auxiliary losses are seen by direct tracing only: trace with strict=False
    """
    token = _REFUSED.set(True)
    try:
        yield
    finally:
        _REFUSED.reset(token)
