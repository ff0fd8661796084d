"""Tell whoever has a pipeline prepared again and again, for which of the values that change."""

import sys
import warnings
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from annopipe import pytrees
from annopipe.pipeline.calls.python_values import PythonValues, changed_names
from annopipe.pipeline.calls.signatures import Recent, key_of

__all__ = ["Retraces"]

_FEW = 4  # values of one constant that are nothing to warn about
_MANY = 8  # preparations
_SHOWN = 3


class Retraces:
    """What a pipeline was prepared for: constants among arguments, and Python values that forwards and losses read.

    Args:
        size: how many kinds of calls are remembered.
    """

    def __init__(self, size: int) -> None:
        self._seen: Recent[Hashable, dict[str, list[str]]] = Recent(size)
        self._told: set[str] = set()

    def note(self, arguments: Mapping[str, Any], around: Hashable, values: Sequence[PythonValues]) -> None:
        """Take down that a pipeline is prepared; warn of what is another value again and again.

        Args:
            arguments: of the call, by name.
            around: what else decides.
            values: the Python values that it has been prepared for, the last ones at the end.
        """
        rest = key_of(pytrees.tree_map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else None, arguments))
        seen = self._seen.get((around, rest)) or {}
        self._seen.put((around, rest), seen)
        for name, value in arguments.items():
            for path, leaf in zip(pytrees.leaf_paths(value, name), pytrees.tree_leaves(value), strict=True):
                if not isinstance(leaf, torch.Tensor) and path not in self._told:
                    self._note_constant(path, repr(leaf), seen.setdefault(path, []))
        changed = sorted({name for pair in pairwise(values) for name in changed_names(*pair)})
        if changed and len(values) == _MANY:
            _warn(
                f"the pipeline has been prepared {_MANY} times, which takes long each time, and also for changes of "
                f"{', '.join(changed[:_SHOWN])}: let what changes often be a buffer, or an argument that is a tensor"
            )

    def _note_constant(self, path: str, text: str, found: list[str]) -> None:
        if text not in found:
            found.append(text)
        if len(found) > _FEW:
            self._told.add(path)
            shown = ", ".join(value if len(value) <= 40 else f"{value[:30]}..." for value in found[-_SHOWN:])
            _warn(
                f"{path} has had {len(found)} values, the last ones {shown}, and the pipeline was traced again for "
                "each: a number or text is a constant of the graphs; pass it as a tensor, one that batch_dims gives to "
                "every microbatch whole"
            )


def _warn(text: str) -> None:
    """At the line that calls annopipe."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("annopipe."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
