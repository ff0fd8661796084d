"""Which operations only move elements between places, types and ranks, or add them up: what a sum may pass through."""

from typing import Any

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem, is_operator, launch_of, traits

__all__ = ["is_linear", "moves_only", "only_looks"]

_aten = torch.ops.aten
_SCALED = frozenset({_aten.div.Tensor, _aten.mul.Tensor, _aten.div.Scalar, _aten.mul.Scalar})
# Copies, each element of whose result is an element of an argument, in another place or type, or zero.
_COPIES = frozenset(
    f"aten::{name}"
    for name in ("_to_copy", "cat", "clone", "constant_pad_nd", "contiguous", "new_zeros", "stack", "zeros")
)
_COLLECTIVES = frozenset(
    f"_c10d_functional::{name}"
    for name in ("all_gather_into_tensor", "all_reduce", "all_to_all_single", "reduce_scatter_tensor")
)
_REDUCTIONS = ("sum", "avg")


def moves_only(node: fx.Node) -> bool:
    """Whether the operation is a view, or a copy that only moves and casts elements, and pads with zeros."""
    if is_getitem(node):
        return moves_only(node.all_input_nodes[0])
    name = _name(node)
    pads_with = node.args[2:] if name == "aten::constant_pad_nd" else ()
    return bool(name) and (traits(node).view or name in _COPIES) and not any(pads_with)


def only_looks(node: fx.Node) -> bool:
    """Whether it is a view of all elements of a tensor."""
    if is_getitem(node) or not traits(node).view or not node.all_input_nodes:
        return False
    own, source = meta.value(node), meta.value(node.all_input_nodes[0])
    if not (isinstance(own, torch.Tensor) and isinstance(source, torch.Tensor)):
        return False
    counts = own.numel(), source.numel()
    return all(isinstance(count, int) for count in counts) and counts[0] == counts[1]


def is_linear(node: fx.Node) -> bool:
    """Whether the result for a sum of inputs is the sum of the results, but for rounding; collectives count, too.

    What takes a size that depends on data is not: it differs between microbatches.
    """
    if any(meta.is_number(source) for source in node.all_input_nodes):
        return False
    if node.target is _aten.add.Tensor:
        return all(isinstance(item, fx.Node) for item in node.args) and not node.kwargs
    if node.target in _SCALED:
        return not isinstance(node.args[1], fx.Node) and not node.kwargs
    return moves_only(node) or launch_of(node) is not None or _sums(node)


def _sums(node: fx.Node) -> bool:
    """Whether it launches a collective that moves elements between ranks, adds them up or averages."""
    kind = node.args[1] if len(node.args) > 1 else None
    return _name(node) in _COLLECTIVES and not (isinstance(kind, str) and kind not in _REDUCTIONS)


def _name(node: fx.Node) -> str:
    target: Any = node.target
    return str(target.name()).partition(".")[0] if node.op == "call_function" and is_operator(target) else ""
