"""Prove of a loop over hit rows, traced as a loop over all rows, that the turns of other rows change nothing.

needs       a joint graph traced under ``annopipe.graphs.hit_loops.HitLoops``, with the nodes of ``marks_hits`` in it.
does        nothing to the graph.
guarantees  rows are hit if and only if their row of a mask of non-negative entries has one that is not zero; what
            leaves a turn updates rows whose number is that of these entries (none if the row is not hit); nothing
            else in a turn has an effect. So values are those of the loop over hit rows, and so are gradients, except
            that what only idle turns use gets zeros where autograd gives none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from annopipe.errors import CaptureError
from annopipe.graphs import meta
from annopipe.graphs.hit_loops import HITS_KEY, TURN_KEY
from annopipe.graphs.ops import has_effect, traits

__all__ = ["marks_hits", "prove_hit_loops"]

_aten = torch.ops.aten
# Operations whose result is their first argument, but for some rows; and which argument says which.
_ROW_UPDATES: Mapping[Any, int] = {
    _aten.index_add.default: 2,
    _aten.index_put.default: 1,
    _aten.index_reduce.default: 2,
    _aten.scatter_add.default: 2,
}
_SAME_ENTRIES = frozenset(
    {
        *(_aten._to_copy.default, _aten.clone.default, _aten.detach.default, _aten.alias.default),
        *(_aten.permute.default, _aten.transpose.int, _aten.reshape.default, _aten.view.default),
        *(_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default),
    }
)
_ZEROS = frozenset({_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default})


def marks_hits(node: fx.Node) -> bool:
    """Whether the node says which rows a loop hits; nothing uses its value any more, but the proof needs it."""
    return node.op == "call_function" and node.target is _aten.nonzero.default and HITS_KEY in meta.custom_tags(node)


def prove_hit_loops(graph: fx.Graph, constant: Callable[[str], Any]) -> None:
    """Prove it for every loop of ``graph``.

    Args:
        constant: the value of a ``get_attr`` node by its target.

    Raises:
        CaptureError: there is no proof for one of the loops.
    """
    turns: dict[tuple[int, int, str], list[fx.Node]] = {}
    hits: dict[int, fx.Node] = {}
    for node in graph.nodes:
        tags = meta.custom_tags(node)
        if marks_hits(node):
            hits.setdefault(tags[HITS_KEY], node)
        elif TURN_KEY in tags and not meta.is_traced_in_backward(node):
            turns.setdefault(tags[TURN_KEY], []).append(node)
    for (loop, row, place), nodes in turns.items():
        mask = _mask_with_hits(hits[loop].args[0]) if loop in hits else None
        if mask is None:
            raise _no_proof("which rows are hit is not told by the sums of a mask of zeros and ones", place)
        _prove_turn(nodes, _sizes_of_row(nodes, mask, row, constant), place)


def _prove_turn(nodes: list[fx.Node], empty: set[Any], where: str) -> None:
    """Prove that a turn changes nothing when the sizes in ``empty`` are zero."""
    inside = set(nodes)
    for node in nodes:
        known = traits(node)
        harmless = known.check or (known.random and empty & _sizes(node))
        if known.launch or (has_effect(node) and not harmless):
            raise _no_proof(f"{node.target} has an effect in every turn", where)
        if all(user in inside or meta.is_traced_in_backward(user) for user in node.users):
            continue
        base: Any = node
        while base in inside:
            place = _ROW_UPDATES.get(base.target)
            rows = [] if place is None else base.args[place]
            indices = rows if isinstance(rows, (list, tuple)) else [rows]
            if not any(isinstance(index, fx.Node) and empty & _sizes(index) for index in indices):
                raise _no_proof(f"the result of {base.target} is used after a turn, also of one without rows", where)
            base = base.args[0]


def _mask_with_hits(node: Any) -> fx.Node | None:
    """For ``sum(mask) > 0`` over all dimensions but the first: the mask, if its entries are not negative."""
    if node.target in (_aten.gt.Scalar, _aten.ne.Scalar) and node.args[1] == 0:
        node = node.args[0]
    if node.target not in (_aten.sum.dim_IntList, _aten.any.dims):
        return None
    mask, dims = node.args[0], node.args[1]
    rank = len(meta.value(mask).shape)
    summed = {d % rank for d in dims}
    return mask if summed == set(range(1, rank)) and _is_not_negative(mask) else None


def _is_not_negative(node: Any) -> bool:
    while node.target in _SAME_ENTRIES:
        node = node.args[0]
    if node.target is _aten.scatter.value:  # one_hot may write ones into zeros
        return bool(node.args[3] >= 0) and _is_not_negative(node.args[0])
    return node.target in _ZEROS or meta.value(node).dtype == torch.bool


def _sizes_of_row(nodes: list[fx.Node], mask: fx.Node, row: int, constant: Callable[[str], Any]) -> set[Any]:
    """The data-dependent sizes that are the number of entries in ``row`` of the mask that are not zero."""
    return {
        meta.value(node).shape[0].node.expr
        for node in nodes
        if node.target is _aten.nonzero.default and _is_row(node.args[0], mask, row, constant)
    }


def _is_row(node: Any, mask: fx.Node, row: int, constant: Callable[[str], Any]) -> bool:
    while node.target in _SAME_ENTRIES or _picks_the_only_one(node):
        node = node.args[0]
    if node.target is _aten.select.int:
        return bool(node.args[0] is mask and node.args[1] == 0 and node.args[2] == row)
    if node.target is not _aten.index.Tensor or node.args[0] is not mask or len(node.args[1]) != 1:
        return False
    index = node.args[1][0]
    while index.target in _SAME_ENTRIES or index.target is _aten.lift_fresh_copy.default:
        index = index.args[0]
    return bool(index.op == "get_attr" and constant(str(index.target)).flatten().tolist() == [row])


def _picks_the_only_one(node: Any) -> bool:
    """Whether the node is ``x[0]`` of an ``x`` that has one row."""
    return bool(node.target is _aten.select.int and node.args[1] == 0 and meta.value(node.args[0]).shape[0] == 1)


def _sizes(node: fx.Node) -> set[Any]:
    """The data-dependent extents of a node's tensor, or of its tensors."""
    fakes = meta.value(node)
    tensors = [f for f in (fakes if isinstance(fakes, (list, tuple)) else [fakes]) if isinstance(f, torch.Tensor)]
    extents: list[Any] = [extent for fake in tensors for extent in fake.shape]
    return {extent.node.expr for extent in extents if isinstance(extent, torch.SymInt)}


def _no_proof(reason: str, place: str) -> CaptureError:
    return CaptureError(
        f"forward loops over the result of nonzero(), as often as the data says, but {reason}: "
        f"a graph needs a loop over all rows; write it over range(number of experts)\n  at {place}"
    )
