"""Tags for model code: what runs inside them carries the tag on its FX nodes, forward and backward.

    with ap.region("moe"):
        with ap.comm("dispatch"):
            x = all_to_all(x)            # node.meta["custom"]["annopipe"] == "moe/dispatch"

The tags are generator context managers around ``torch.fx.traceback.annotate``, so they trace under
``torch.compile(fullgraph=True)`` and under AOT tracing, and also work as decorators. When nothing traces they do nothing.

Source: ``torch/fx/traceback.py`` (``annotate``, ``current_meta``). ``annotate`` and ``current_meta`` are touched here and
nowhere else; the nodes' side of the tags is read in ``annopipe/graphs/meta.py``.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.fx.traceback as fx_traceback
from torch.utils import _pytree as pytree

from annopipe.errors import GraphError

__all__ = ["KIND_KEY", "LANE_KEY", "REGION_KEY", "comm", "nano_batch", "nano_batches", "region"]

REGION_KEY = "annopipe"
KIND_KEY = "annopipe_kind"
LANE_KEY = "annopipe_lane"

_NAME = re.compile(r"[\w\-\[\]]+(/[\w\-\[\]]+)*")
T = TypeVar("T")


@contextlib.contextmanager
def region(name: str) -> Iterator[None]:
    """Tag what runs inside as belonging to the region ``name``; nested regions form a path, "block3/moe/dispatch".

    Args:
        name: letters, digits, ``_ - [ ]``; ``/`` separates levels, so "moe/dispatch" is the same as two nested regions.

    Raises:
        GraphError: the name is empty or has other characters (the pattern language gives them a meaning).

    >>> with region("attention"):
    ...     pass
    >>> @region("experts")
    ... def experts(x):
    ...     return x
    """
    if not _tracing():
        yield
        return
    with fx_traceback.annotate({REGION_KEY: _path(name), KIND_KEY: "compute"}):
        yield


@contextlib.contextmanager
def comm(name: str) -> Iterator[None]:
    """Tag what runs inside as a region whose purpose is communication, such as dispatch or combine.

    Same names, nesting and errors as ``region``; the nodes also carry the kind "comm".
    """
    if not _tracing():
        yield
        return
    with fx_traceback.annotate({REGION_KEY: _path(name), KIND_KEY: "comm"}):
        yield


@contextlib.contextmanager
def nano_batch(index: int) -> Iterator[None]:
    """Put what runs inside in lane ``index``: nodes of different lanes may be interleaved by a policy.

    Raises:
        GraphError: ``index`` is not a non-negative integer.
    """
    if not _tracing():
        yield
        return
    with fx_traceback.annotate({LANE_KEY: _lane(index)}):
        yield


def nano_batches(x: T, parts: int, dim: int = 0) -> Iterator[T]:
    """Split ``x`` along ``dim`` and run each turn of the loop under ``nano_batch(i)``.

    Args:
        x: a tensor, or a pytree of tensors that all have the same length along ``dim``.
        parts: number of nano-batches; when the length does not divide, the first ones are longer by one (7 in 2: 4 and 3).
        dim: the dimension to split.

    Raises:
        GraphError: fewer elements than parts, lengths that differ, or no tensor to split.

    >>> outputs = [part * 2 for part in nano_batches(torch.arange(7), 2)]
    >>> [len(o) for o in outputs]
    [4, 3]
    """
    for index, part in enumerate(_split(x, parts, dim)):
        with nano_batch(index):
            yield part


def _tracing() -> bool:
    return torch.compiler.is_compiling() or fx_traceback.has_preserved_node_meta()


@torch.compiler.assume_constant_result
def _path(name: str) -> str:
    """The full path of ``name`` inside the regions that are open now; a constant for Dynamo, which runs it as Python."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GraphError(
            f"region name {name!r}: use letters, digits and _ - [ ], with / between the levels of a path, "
            "for example 'attention' or 'moe/dispatch'"
        )
    outer = fx_traceback.get_current_meta().get("custom", {}).get(REGION_KEY)
    return f"{outer}/{name}" if outer else name


@torch.compiler.assume_constant_result
def _lane(index: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise GraphError(f"nano_batch({index!r}): the lane is a non-negative integer")
    return index


def _split(x: T, parts: int, dim: int) -> list[T]:
    leaves, spec = pytree.tree_flatten(x)
    if parts < 1 or not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise GraphError(f"nano_batches takes tensors and at least one part, got {type(x).__name__} and {parts} parts")
    length = leaves[0].shape[dim]
    if any(leaf.shape[dim] != length for leaf in leaves) or length < parts:
        lengths = [leaf.shape[dim] for leaf in leaves]
        raise GraphError(f"nano_batches cannot split lengths {lengths} along dim {dim} into {parts} parts")
    split = [leaf.tensor_split(parts, dim) for leaf in leaves]
    return [pytree.tree_unflatten(list(part), spec) for part in zip(*split, strict=True)]
