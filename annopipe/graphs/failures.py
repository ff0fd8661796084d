"""Turn whatever goes wrong while a module is traced into a CaptureError that names the user's line."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from annopipe.errors import AnnopipeError, CaptureError

__all__ = ["explained", "user_line"]

_TORCH = Path(torch.__file__).parent
_OWN = Path(__file__).parent.parent
_HIDDEN = (_TORCH, _OWN, Path(contextlib.__file__))


@contextlib.contextmanager
def explained(module: nn.Module, *, plain: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Re-raise what happens inside as a CaptureError with its reason and the innermost line of the user's code.

    Args:
        plain: exceptions whose text says it all, so that the message need not name their type.
    """
    try:
        yield
    except AnnopipeError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        kind = "" if isinstance(error, plain) else f" ({type(error).__name__})"
        line = user_line(error.__traceback__)
        raise CaptureError(f"cannot trace {type(module).__name__}: {reason}{kind}{line}") from error


def user_line(trace: TracebackType | None) -> str:
    """The innermost line that is neither PyTorch's nor ours, as text to append; else a line of ``torch.nn``; or ""."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<")]
    theirs = [f for f in frames if not any(Path(f.filename).is_relative_to(hidden) for hidden in _HIDDEN)]
    library = [f for f in frames if Path(f.filename).is_relative_to(_TORCH / "nn" / "modules") and f.name == "forward"]
    for frame in (theirs or library)[-1:]:
        return f"\n  at {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
    return ""
