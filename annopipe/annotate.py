"""Tags for model code: what runs inside them carries the tag on its FX nodes, forward and backward.

    with ap.region("moe"):
        with ap.comm("dispatch"):
            x = all_to_all(x)            # node.meta["custom"]["annopipe"] == "moe/dispatch"

The tags are generator context managers around ``torch.fx.traceback.annotate``, so they trace under
``torch.compile(fullgraph=True)`` and under AOT tracing, and also work as decorators. When nothing traces they do
nothing but check the name.

Source: ``torch/fx/traceback.py`` (``annotate``, ``current_meta``). Both are touched here and nowhere else; the nodes'
side of the tags is read in ``annopipe/graphs/meta.py``.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
import torch.fx.traceback as fx_traceback

from annopipe import pytrees
from annopipe.errors import GraphError

__all__ = [
    "KIND_KEY",
    "LANE_KEY",
    "REGION_KEY",
    "STREAM_KEY",
    "check_name",
    "comm",
    "nano_batch",
    "nano_batches",
    "region",
]

REGION_KEY = "annopipe"
KIND_KEY = "annopipe_kind"
LANE_KEY = "annopipe_lane"
STREAM_KEY = "annopipe_stream"

_NAME = re.compile(r"[\w\-\[\]]+(/[\w\-\[\]]+)*")
T = TypeVar("T")


@contextlib.contextmanager
def region(name: str, *, stream: str | None = None) -> Iterator[None]:
    """Tag what runs inside as belonging to the region ``name``; nested regions form a path, "block3/moe/dispatch".

    Args:
        name: letters, digits, ``_ - [ ]``; ``/`` separates levels, so "moe/dispatch" is the same as two nested regions.
        stream: the CUDA stream on which a plan runs it, forward and backward; None: that of the region around it. "" is
            the stream that the graph is called on.

    Raises:
        GraphError: the name is empty or has other characters (the pattern language gives them a meaning).

    >>> with region("attention"):
    ...     pass
    >>> @region("experts")
    ... def experts(x):
    ...     return x
    """
    if not _tracing():
        check_name(name)
        if stream:
            check_name(stream)
        yield
        return
    placed = {} if stream is None else {STREAM_KEY: _stream(stream)}
    with fx_traceback.annotate({REGION_KEY: _path(name), KIND_KEY: "compute", **placed}):
        yield


@contextlib.contextmanager
def comm(name: str) -> Iterator[None]:
    """Tag what runs inside as a region whose purpose is communication, such as dispatch or combine.

    Same names, nesting and errors as ``region``; the nodes also carry the kind "comm".
    """
    if not _tracing():
        check_name(name)
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
        _lane(index)
        yield
        return
    with fx_traceback.annotate({LANE_KEY: _lane(index)}):
        yield


def nano_batches(x: T, parts: int, dim: int = 0) -> Iterator[T]:
    """Split ``x`` along ``dim`` and run each turn of the loop under ``nano_batch(i)``.

    Args:
        x: a tensor, or a pytree of tensors that all have the same length along ``dim``.
        parts: number of nano-batches; when the length does not divide, the first are longer by one (7 in 2: 4 and 3).
        dim: the dimension to split.

    Raises:
        GraphError: fewer elements than parts, lengths that differ, no such dimension, or no tensor to split.

    >>> outputs = [part * 2 for part in nano_batches(torch.arange(7), 2)]
    >>> [len(o) for o in outputs]
    [4, 3]
    """
    pieces = _Pieces(x, parts, dim)
    if torch.compiler.is_compiling():
        for index in range(parts):
            with nano_batch(index):
                yield pieces.take(index)
        return
    turns = _Turns()
    try:
        for index in range(parts):
            turns.begin(index)
            yield pieces.take(index)
    finally:
        turns.end()


def _tracing() -> bool:
    return torch.compiler.is_compiling() or fx_traceback.has_preserved_node_meta()


def check_name(name: str) -> None:
    """Check that a region can be called ``name``.

    Raises:
        GraphError: it cannot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GraphError(
            f"region name {name!r}: use letters, digits and _ - [ ], with / between the levels of a path, "
            "for example 'attention' or 'moe/dispatch'"
        )


@torch.compiler.assume_constant_result
def _path(name: str) -> str:
    """The full path of ``name`` inside the open regions; a constant for Dynamo, which runs this as Python."""
    check_name(name)
    outer = fx_traceback.get_current_meta().get("custom", {}).get(REGION_KEY)
    return f"{outer}/{name}" if outer else name


@torch.compiler.assume_constant_result
def _stream(name: str) -> str:
    if name:
        check_name(name)
    return name


@torch.compiler.assume_constant_result
def _lane(index: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise GraphError(f"nano_batch({index!r}): the lane is a non-negative integer")
    return index


class _Pieces(Generic[T]):
    """What ``nano_batches`` hands out, cut only when its turn comes, so that the cut belongs to its lane."""

    def __init__(self, x: T, parts: int, dim: int) -> None:
        self._leaves, self._spec = pytrees.tree_flatten(x)
        self._dim = dim
        others = [type(leaf).__name__ for leaf in self._leaves if not isinstance(leaf, torch.Tensor)]
        if not isinstance(parts, int) or parts < 1 or not self._leaves or others:
            inside = f" with {others[0]} in it" if others and not isinstance(x, (str, int, float)) else ""
            raise GraphError(
                f"nano_batches takes tensors and at least one part, got {type(x).__name__}{inside} and {parts!r} parts"
            )
        if not isinstance(dim, int) or not all(-leaf.dim() <= dim < leaf.dim() for leaf in self._leaves):
            shapes = ", ".join(str(list(leaf.shape)) for leaf in self._leaves)
            raise GraphError(f"nano_batches cannot split along dim {dim!r}: the shapes are {shapes}")
        lengths = [leaf.shape[dim] for leaf in self._leaves]
        if len(set(lengths)) > 1 or lengths[0] < parts:
            raise GraphError(f"nano_batches cannot split lengths {lengths} along dim {dim} into {parts} parts")
        self._size, self._longer = divmod(lengths[0], parts)

    def take(self, index: int) -> T:
        """Piece number ``index``."""
        start = index * self._size + min(index, self._longer)
        size = self._size + (index < self._longer)
        return pytrees.tree_unflatten([leaf.narrow(self._dim, start, size) for leaf in self._leaves], self._spec)


class _Turn(int):
    """The lane of one turn of a loop, with the lane that holds outside of it."""

    outer: int | None = None
    over = False


class _Turns:
    """Sets the lane for each turn of a loop. Unlike ``with`` blocks, loops may end in any order, as in a ``zip``."""

    def __init__(self) -> None:
        self._turn: _Turn | None = None

    def begin(self, index: int) -> None:
        """Start turn ``index``, which ends the one before."""
        if fx_traceback.has_preserved_node_meta():
            lane = fx_traceback.get_current_meta().get("custom", {}).get(LANE_KEY)
            outer = lane if self._turn is None else self._turn.outer
            if self._turn is not None:
                self._turn.over = True
            self._turn = _Turn(index)
            self._turn.outer = outer
            self._set_lane(self._turn)

    def end(self) -> None:
        """Go back to the innermost lane around the loop that has not ended itself."""
        if self._turn is not None:
            self._turn.over = True
            lane: int | None = self._turn
            while isinstance(lane, _Turn) and lane.over:
                lane = lane.outer
            self._set_lane(lane)

    @staticmethod
    def _set_lane(lane: int | None) -> None:
        meta = fx_traceback.get_current_meta()
        custom = {key: value for key, value in meta.get("custom", {}).items() if key != LANE_KEY}
        if lane is not None:
            custom[LANE_KEY] = lane
        if custom:
            meta["custom"] = custom
        else:
            meta.pop("custom", None)
