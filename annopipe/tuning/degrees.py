"""``Degrees``: how the devices of a cluster are shared out: over stages, over the data, over the experts."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from annopipe.errors import CostError

__all__ = ["Degrees", "divisors"]


@dataclass(frozen=True, order=True)
class Degrees:
    """How many ranks share what, and how large a microbatch is.

    The devices are numbered so that the data-parallel ranks of one pipeline rank are neighbours, and among these the
    ranks that share experts.

    Attributes:
        ranks: of one pipeline.
        data: pipelines, each of which takes its share of the batch.
        expert: how many of them share the experts; a divisor of ``data``. Other parameters are in all of them.
        microbatch_size: sequences of one microbatch on one pipeline.

    Raises CostError for what is no count, and for experts that not all pipelines would have.

    >>> Degrees(ranks=4, data=16, expert=8).devices
    64
    """

    ranks: int
    data: int = 1
    expert: int = 1
    microbatch_size: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise CostError(f"{field.name}={value!r}: give a whole number, 1 or more")
        if self.data % self.expert:
            raise CostError(
                f"expert={self.expert} does not divide data={self.data}: the ranks that share experts are some of the "
                f"data-parallel ones; possible are {', '.join(map(str, divisors(self.data)))}"
            )

    def __str__(self) -> str:
        parts = [f"PP {self.ranks}", f"DP {self.data}", *([f"EP {self.expert}"] if self.expert > 1 else [])]
        return f"{' x '.join(parts[:2])}{''.join(f', {part}' for part in parts[2:])}, size {self.microbatch_size}"

    @property
    def devices(self) -> int:
        """How many devices that takes."""
        return self.ranks * self.data

    def microbatches(self, batch: int) -> int:
        """Of one pipeline in a step with so many sequences.

        Raises CostError when they cannot be shared out equally.

        >>> Degrees(ranks=4, data=16, microbatch_size=2).microbatches(256)
        8
        """
        count, rest = divmod(batch, self.data * self.microbatch_size)
        if rest or not count:
            raise CostError(
                f"a batch of {batch} sequences is not shared equally by {self.data} pipelines in microbatches of "
                f"{self.microbatch_size}: give a multiple of {self.data * self.microbatch_size}"
            )
        return count


def divisors(number: int) -> Iterator[int]:
    """From 1 up.

    >>> [*divisors(12)]
    [1, 2, 3, 4, 6, 12]
    """
    return (each for each in range(1, number + 1) if number % each == 0)
