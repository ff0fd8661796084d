"""What has been prepared for calls of one kind, to be used again; not more than a bounded number."""

import warnings
from collections.abc import Iterable
from itertools import pairwise
from typing import Generic, TypeVar

from annopipe.pipeline.calls.python_state import State, changed_names

__all__ = ["Prepared"]

T = TypeVar("T")
_MOST, _MANY = 64, 8


class Prepared(Generic[T]):
    """By the signature of a call: what was prepared, and the Python values that it holds for.

    >>> kept = Prepared[int]()
    >>> kept.keep("a", 1, {})
    >>> "a" in kept, kept["a"], "b" in kept
    (True, 1, False)
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[T, State]] = {}

    def __contains__(self, signature: str) -> bool:
        return signature in self._found

    def __getitem__(self, signature: str) -> T:
        found = self._found[signature] = self._found.pop(signature)  # the last to be let go
        return found[0]

    def values(self) -> Iterable[T]:
        """All that is kept, the oldest first."""
        return [found for found, _ in self._found.values()]

    def clear(self) -> None:
        """Keep nothing."""
        self._found.clear()

    def keep(self, signature: str, found: T, state: State) -> None:
        """Keep it, in the place of the oldest when there is much; warn whoever prepares again and again."""
        self._found[signature] = found, state  # the state, so that no identity in the signature is used again
        if len(self._found) > _MOST:
            del self._found[next(iter(self._found))]
        states = [state for _, state in self._found.values()]
        changed = sorted({name for pair in pairwise(states) for name in changed_names(*pair)})
        if changed and len(states) == _MANY:
            warnings.warn(
                f"the pipeline has been prepared {_MANY} times, which takes long each time, and also for changes of "
                f"{', '.join(changed[:3])}: let what changes often be a buffer, or an argument that is a tensor",
                stacklevel=2,
            )
