"""Loops over the experts that got a token, as many models write them, are traced as loops over all experts.

    hit = mask.sum(dim=(1, 2)).gt(0).nonzero()      # mask: [experts, top_k, tokens], zeros and ones
    for e in hit:                                   # as many turns as the data says: cannot be traced
        slot, token = torch.where(mask[e].squeeze(0))
        out.index_add_(0, token, experts[e](x[token]) * weights[token, slot, None])

Here the loop gets one turn for every row of the mask. That is only right if a turn whose row is not hit changes
nothing. Python's part of that is checked here: the loop runs to its end, over the rows themselves (no ``enumerate``),
and no turn leaves another number, flag or list behind. The graph's part is proved in ``annopipe.graphs.hit_proof``.
"""

import dis
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from annopipe.errors import CaptureError
from annopipe.graphs.snapshots import HoldsTensorError, snapshot

__all__ = ["HITS_KEY", "TURN_KEY", "HitLoops"]

HITS_KEY = "annopipe_hits"  # on the nonzero that says which rows are hit: the loop's number
TURN_KEY = "annopipe_turn"  # on what runs in a turn: the loop's number, the row, and the loop's place in the source
_NONZERO = (torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere)
_FLATTENINGS = (torch.Tensor.squeeze, torch.squeeze, torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.flatten)


class HitLoops(TorchFunctionMode):
    """While a forward is traced: iterating over ``nonzero`` of a one-dimensional mask gives every row of the mask.

    Attributes:
        cut_short: whether a loop ended before its last turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hits: dict[int, tuple[torch.Tensor, int, int]] = {}  # by id: the tensor, its rows, its loop
        self._loops = 0
        self._open: dict[int, str] = {}  # loops that have not ended, and their place in the source

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = self._hits.get(id(args[0])) if args else None
        if known is not None and func is torch.Tensor.unbind:
            return _Turns(self._open, *known)
        if func in _NONZERO and args[0].dim() == 1 and isinstance(args[0].shape[0], int) and not kwargs:
            with fx_traceback.annotate({HITS_KEY: self._loops}):
                result = func(*args)
            self._hits[id(result)] = (result, int(args[0].shape[0]), self._loops)
            self._loops += 1
            return result
        result = func(*args, **kwargs)
        whole = func is torch.Tensor.__getitem__ and isinstance(args[1], slice) and args[1] == slice(None)
        if known is not None and isinstance(result, torch.Tensor) and (whole or func in _FLATTENINGS):
            self._hits[id(result)] = (result, *known[1:])
        return result

    def check_finished(self) -> None:
        """Check that every loop that began has run to its end.

        Raises:
            CaptureError: one has not.
        """
        for place in self._open.values():
            raise _refusal("leaves it before its end", place)


class _Turns:
    """The rows of a loop, as tensors; what runs in a turn is tagged with the loop and the row."""

    def __init__(self, unfinished: dict[int, str], hits: torch.Tensor, rows: int, loop: int) -> None:
        self._open = unfinished
        self._shape = [1] * (hits.dim() - 1)  # a row of nonzero() has one entry; flattened, it is a number
        self._rows = rows
        self._loop = loop

    def __iter__(self) -> Iterator[Any]:
        user = sys._getframe(1)
        if user.f_code is torch.Tensor.__iter__.__code__ and user.f_back is not None:
            user = user.f_back
        if not _starts_for_loop(user):
            raise _refusal("does more with it than a for loop (enumerate, zip, list or a comprehension)", _place(user))
        return self._turns()

    def _turns(self) -> Iterator[Any]:
        user = sys._getframe(1)
        before = _plain_locals(user)
        place = self._open[self._loop] = _place(user)
        for row in range(self._rows):
            with fx_traceback.annotate({TURN_KEY: (self._loop, row, place)}):
                yield torch.tensor(row if not self._shape else [row])
            now = _plain_locals(user)
            if changed := sorted(name for name in before if now.get(name, before) != before[name]):
                raise _refusal(f"changes {', '.join(changed)} in every turn", place)
        del self._open[self._loop]


def _starts_for_loop(frame: FrameType) -> bool:
    """Whether a function is about to enter a ``for`` loop: two instructions in a row, in every version of Python."""
    operations = [i for i in dis.get_instructions(frame.f_code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    now = next(index for index, operation in enumerate(operations) if operation.offset == frame.f_lasti)
    return [operation.opname for operation in operations[now : now + 2]] == ["GET_ITER", "FOR_ITER"]


def _plain_locals(frame: FrameType) -> dict[str, Any]:
    """The local variables of a function that are not tensors; of containers with tensors, how many items they have."""
    found = {}
    for name, value in frame.f_locals.items():
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            continue
        try:
            found[name] = snapshot(value)
        except HoldsTensorError:
            if hasattr(value, "__len__"):
                found[name] = len(value)
    return found


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


def _refusal(what: str, place: str) -> CaptureError:
    return CaptureError(
        f"forward loops over the result of nonzero(), as often as the data says, and {what}: "
        f"a graph needs a loop over all rows; write it over range(number of experts)\n  at {place}"
    )
