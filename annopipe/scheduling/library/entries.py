"""One entry of the library: a named schedule, how its specification is made, and what is known about it."""

from collections.abc import Callable
from dataclasses import dataclass

from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """A schedule of the library.

    Attributes:
        name: how `annopipe.schedule` calls it.
        spec: makes the specification from ranks, microbatches and the options.
        options: names of its options with their defaults; None has none and must be given.
        summary: what it does, in one sentence.
        use: when to choose it, in one sentence.
        bubble, peak: what is known about idle time, and about the activations of a rank in microbatches, as formulas in
            p ranks, m microbatches and v chunks; "" when there is no simple one.
        source: where it was published.
        aliases: other names, among them PyTorch's classes.
    """

    name: str
    spec: Callable[..., ScheduleSpec]
    summary: str
    use: str
    source: str
    bubble: str = ""
    peak: str = ""
    options: tuple[tuple[str, object], ...] = ()
    aliases: tuple[str, ...] = ()
