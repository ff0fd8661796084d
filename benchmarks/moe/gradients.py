"""Compare the gradients of steps whose schedules place the layers on different ranks: by fingerprints, on all ranks.

A fingerprint is the length of a gradient and its projections on a few directions of random signs, the same for all
gradients of one size: that of another layer, or of the same numbers in another order or with other signs, has another.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Fingerprints", "differing", "fingerprints", "gathered"]

# By the parameter's name in the whole model, and the expert rank that it is on.
Fingerprints = dict[str, list[float]]
_DIRECTIONS = 4
_TOLERANCE = 1e-4  # of the length: steps add up in float32, in different orders


def fingerprints(modules: Iterable[nn.Module], where: str) -> Fingerprints:
    """Of all gradients, which are then gone.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[3.0, 4.0]])
    >>> length, *_ = fingerprints([layer], "rank 0")["rank 0 weight"]
    >>> length, layer.weight.grad
    (5.0, None)
    """
    found: Fingerprints = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad.double().flatten()
                projections = _directions(gradient.numel()) @ gradient
                found[f"{where} {name}"] = [gradient.norm().item(), *projections.tolist()]
                parameter.grad = None
    return found


def gathered(own: Fingerprints) -> Fingerprints:
    """Those of all ranks, on all ranks."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return {name: values for found in everyone for name, values in found.items()}


def differing(one: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> list[str]:
    """The names of gradients that are not the same in both, or only in one.

    >>> differing({"w": [1.0, 0.5], "v": [1.0, 1.0]}, {"w": [1.0, -0.5]})
    ['v', 'w']
    """
    names = sorted(one.keys() | other.keys())
    return [name for name in names if name not in one or name not in other or not _alike(one[name], other[name])]


def _alike(one: list[float], other: list[float]) -> bool:
    length = max(one[0], other[0])
    return math.isfinite(length) and all(abs(a - b) <= _TOLERANCE * length for a, b in zip(one, other, strict=True))


@functools.cache
def _directions(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(2, (_DIRECTIONS, size), generator=generator).double() * 2 - 1
