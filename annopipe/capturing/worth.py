"""Which runs are worth capturing: those whose operations take longer to launch than what replaying adds.

A replay is one launch. What a run takes from elsewhere is copied in, and what outlives the call is copied out: one more
launch each, and the bytes that go through memory. Where tensors are so large that the GPU is busy anyway, nothing is
gained, and nothing is captured.
"""

import dataclasses

__all__ = ["NOT_WORTH", "Weight"]

NOT_WORTH = "launching it takes no longer than copying what a replay takes and leaves"
_LAUNCH_S = 5e-6  # an operation of PyTorch on the host
_ALLOCATION_S = 1.5e-6
_COPIED_BYTES_PER_S = 1e12  # read and written


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """A run as seconds: how many operations it has, and how many tensors of how many bytes are copied in and out.

    >>> Weight(operations=20, copied_in=2, copied_out=3, size_bytes=2**20).gain_s > 0
    True
    >>> Weight(operations=20, copied_in=2, copied_out=3, size_bytes=2**30).gain_s > 0
    False
    """

    operations: int
    copied_in: int = 0
    copied_out: int = 0
    size_bytes: int = 0

    @property
    def gain_s(self) -> float:
        """Seconds that capturing saves."""
        launches = 1 + (self.copied_in > 0) + (self.copied_out > 0)
        copying_s = self.copied_out * _ALLOCATION_S + self.size_bytes / _COPIED_BYTES_PER_S
        return (self.operations - launches) * _LAUNCH_S - copying_s
