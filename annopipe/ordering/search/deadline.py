"""A moment to stop at, for searches that may depend on the clock."""

import dataclasses
import time

__all__ = ["Deadline"]


@dataclasses.dataclass(frozen=True)
class Deadline:
    """A moment of the machine's clock, in seconds.

    >>> Deadline.after(seconds=0.0).is_over
    True
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment that is so many seconds ahead."""
        return cls(time.monotonic() + seconds)

    @property
    def is_over(self) -> bool:
        """Whether it has come."""
        return time.monotonic() >= self.at
