"""Which schedules the eager runtime of the installed PyTorch runs over gloo; without torch."""

from importlib.metadata import version

__all__ = ["SENDS_TO_ITSELF", "can_run", "runs_over_gloo"]

# PyTorch 2.11 sends messages from a rank to itself where that holds stages that follow each other; gloo cannot do that.
SENDS_TO_ITSELF = version("torch").startswith("2.11.")
# By our names: stages a rank, and whether the last one is on the rank of the first.
_SHAPES = {
    "gpipe": (1, False),
    "1f1b": (1, False),
    "interleaved-1f1b": (2, False),
    "zbv": (2, True),
    "dualpipev": (2, True),
}


def runs_over_gloo(schedule: str, ranks: int) -> bool:
    """Whether the eager runtime runs a schedule of ours on so many ranks.

    >>> runs_over_gloo("1f1b", 1)
    True
    """
    chunks, folded = _SHAPES[schedule]
    return can_run(chunks, ranks, folded=folded)


def can_run(chunks: int, ranks: int, *, folded: bool) -> bool:
    """The same of a schedule with so many stages a rank, whose last half is folded back or not."""
    return not SENDS_TO_ITSELF or chunks == 1 or (ranks > 1 and not folded)
