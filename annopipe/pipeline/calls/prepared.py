"""What has been prepared for calls of one kind, to be used again; not more than a bounded number."""

from typing import Generic, TypeVar

from annopipe.pipeline.calls.python_values import PythonValues
from annopipe.pipeline.calls.signatures import Recent

__all__ = ["Prepared"]

T = TypeVar("T")
_MOST = 64


class Prepared(Generic[T]):
    """By the signature of a call: what was prepared, and the Python values that it holds for.

    >>> kept = Prepared[int]()
    >>> kept.keep("a", 1, {})
    >>> "a" in kept, kept["a"], "b" in kept
    (True, 1, False)
    """

    def __init__(self) -> None:
        self._found: Recent[str, tuple[T, PythonValues]] = Recent(_MOST)

    def __contains__(self, signature: str) -> bool:
        return self._found.get(signature) is not None

    def __getitem__(self, signature: str) -> T:
        found = self._found.get(signature)
        if found is None:
            raise KeyError(signature)
        return found[0]

    def python_values(self) -> list[PythonValues]:
        """Of all that is kept, in the order of their last use."""
        return [values for _, values in self._found.values()]

    def keep(self, signature: str, found: T, values: PythonValues) -> None:
        """Keep it, in the place of what was not used for longest when there is much."""
        self._found.put(signature, (found, values))  # the values, so that no identity in the signature is used again
