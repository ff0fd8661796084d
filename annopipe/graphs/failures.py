"""Turn whatever goes wrong while a module is traced into a CaptureError that names the user's line."""

import contextlib
import logging
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from annopipe.errors import AnnopipeError, CaptureError

__all__ = ["Explained", "PlacedError", "user_frame", "user_line"]

_TORCH = Path(torch.__file__).parent
_HIDDEN = (_TORCH, Path(__file__).parent, Path(__file__).parent.parent / "annotate.py", Path(contextlib.__file__))


_FAKE_TENSOR_LOG = logging.getLogger("torch._subclasses.fake_tensor")  # prints tracebacks of what is told in a line
_NO_GENERATOR = "argument of type: <class 'torch._C.Generator'>"  # how FX of PyTorch 2.11 refuses one
_GENERATOR = "it draws from a generator of its own, which no graph of this PyTorch can hold"
_DEFAULT_GENERATOR = "; draw from the default generator, or use PyTorch 2.13 or later"
_BRANCH = "; compute both and choose with torch.where, or branch outside of the stage"


class PlacedError(Exception):
    """Something went wrong (the cause) at a line of the user's code that is not in the traceback.

    Args:
        line: the line, as ``user_frame`` tells it; "" if it is not known.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class Explained:
    """Re-raises what happens inside as a CaptureError with its reason and the innermost line of the user's code.

    Args:
        module: whose tracing it is.
        plain: exceptions whose text says it all, so that the message need not name their type.
    """

    def __init__(self, module: nn.Module, *, plain: tuple[type[Exception], ...] = ()) -> None:
        self._name = type(module).__name__
        self._plain = plain
        self._log_was_off = False

    def __enter__(self) -> None:
        self._log_was_off, _FAKE_TENSOR_LOG.disabled = _FAKE_TENSOR_LOG.disabled, True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _FAKE_TENSOR_LOG.disabled = self._log_was_off
        if not isinstance(error, Exception) or isinstance(error, AnnopipeError):
            return
        line = error.line if isinstance(error, PlacedError) else ""
        if isinstance(error, PlacedError) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        told = "" if isinstance(error, (AnnopipeError, *self._plain)) else f" ({type(error).__name__})"
        if isinstance(error, GuardOnDataDependentSymNode):
            reason, told = "it branches on a value that only the data decides, and a graph has one branch", _BRANCH
        if reason == _NO_GENERATOR:
            reason, told = _GENERATOR, _DEFAULT_GENERATOR
        raise CaptureError(f"cannot trace {self._name}: {reason}{told}{line or user_line(trace)}") from error


def user_line(trace: TracebackType | None) -> str:
    """The innermost line that is neither PyTorch's nor ours, as text to append; else a line of ``torch.nn``; or ""."""
    return user_frame(traceback.extract_tb(trace))


def user_frame(stack: Iterable[traceback.FrameSummary]) -> str:
    """The same for a stack, outermost frame first."""
    frames = [frame for frame in stack if not frame.filename.startswith("<")]
    theirs = [f for f in frames if not any(Path(f.filename).is_relative_to(hidden) for hidden in _HIDDEN)]
    library = [f for f in frames if Path(f.filename).is_relative_to(_TORCH / "nn" / "modules") and f.name == "forward"]
    for frame in (theirs or library)[-1:]:
        return f"\n  at {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
    return ""
