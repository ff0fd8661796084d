"""Loops over the experts that got a token, as many models write them, become loops over all experts.

    hit = mask.sum(dim=(1, 2)).gt(0).nonzero()      # mask: [experts, top_k, tokens], zeros and ones
    for e in hit:                                   # as many turns as the data says: cannot be traced
        slot, token = torch.where(mask[e].squeeze(0))
        out.index_add_(0, token, experts[e](x[token]) * weights[token, slot, None])

While it is traced, the loop runs one turn for every row of ``mask``, and then the graph is asked for a proof that the
turns of rows that are not hit change nothing: what leaves a turn are additions to (or writes of) rows whose number is
that of the ones in the turn's row of the mask, and nothing else in it has an effect. Such a turn gives zero gradients
to the expert's parameters, where eager gives none.

needs       a forward that runs under ``HitLoops``; the joint graph, with the nodes that ``marks_hits`` names still in it.
does        nothing to the graph.
guarantees  values and gradients are those of the loop over hit rows, or CaptureError.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx
from torch.overrides import TorchFunctionMode

from annopipe.errors import CaptureError
from annopipe.graphs import meta
from annopipe.graphs.ops import has_effect, is_getitem, traits

__all__ = ["HitLoops", "marks_hits", "prove_hit_loops"]

_HITS_KEY = "annopipe_hits"
_TURN_KEY = "annopipe_turn"
_aten = torch.ops.aten
_NONZERO = (torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere)
_FLATTENINGS = (torch.Tensor.squeeze, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape, torch.squeeze)
# Results that are the first argument, but for the rows that are given as indices.
_ROW_UPDATES: Mapping[Any, int] = {
    _aten.index_add.default: 2,
    _aten.index_put.default: 1,
    _aten.scatter_add.default: 2,
    _aten.index_reduce.default: 2,
}
_SAME_ENTRIES = frozenset(
    {
        _aten._to_copy.default,
        _aten.clone.default,
        _aten.permute.default,
        _aten.squeeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.transpose.int,
        _aten.unsqueeze.default,
        _aten.reshape.default,
        _aten.view.default,
    }
)


class HitLoops(TorchFunctionMode):
    """While a forward is traced: iterating over the result of ``nonzero`` of one-dimensional masks gives every row."""

    def __init__(self) -> None:
        super().__init__()
        self._hits: dict[int, tuple[torch.Tensor, int, int]] = {}  # by id: the tensor, its rows, its loop
        self._loops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = self._hits.get(id(args[0])) if args else None
        if known is not None and func in (torch.Tensor.unbind, torch.Tensor.tolist):
            hits, rows, loop = known
            return _Turns(rows, loop, [1] if hits.dim() == 2 else None if func is torch.Tensor.tolist else [])
        if func in _NONZERO and args[0].dim() == 1 and isinstance(args[0].shape[0], int) and not kwargs:
            with fx_traceback.annotate({_HITS_KEY: self._loops}):
                result = func(*args)
            self._hits[id(result)] = (result, int(args[0].shape[0]), self._loops)
            self._loops += 1
            return result
        result = func(*args, **kwargs)
        whole = func is torch.Tensor.__getitem__ and isinstance(args[1], slice) and args[1] == slice(None)
        if known is not None and isinstance(result, torch.Tensor) and (whole or func in _FLATTENINGS):
            self._hits[id(result)] = (result, *known[1:])
        return result


class _Turns(tuple[Any, ...]):
    """The rows of a loop, as tensors or numbers; what runs in a turn is tagged with the loop and the row."""

    __slots__ = ()
    _loop: int

    def __new__(cls, rows: int, loop: int, shape: list[int] | None) -> Any:
        numbers = range(rows) if shape is None else [torch.full(shape, row) for row in range(rows)]
        made = super().__new__(cls, numbers)
        return made, loop
