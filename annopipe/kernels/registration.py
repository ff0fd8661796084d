"""Making a function an operator that PyTorch traces and differentiates."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["register"]


def register(
    signature: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    save: Callable[..., Any],
) -> None:
    """Define ``annopipe::NAME(...)`` for every device.

    Args:
        signature: the schema, without the namespace.
        run: computes.
        fake: the same for tensors without values.
        backward, save: the gradient, and what it takes (``torch.library.register_autograd``).
    """
    name, bracket, rest = signature.partition("(")
    name = f"annopipe::{name}"
    torch.library.define(name, bracket + rest, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(name, "default", run)
    torch.library.register_fake(name, fake)
    torch.library.register_autograd(name, backward, setup_context=save)
