"""Which schedules the eager runtime of the installed PyTorch runs over gloo; without torch."""

from importlib.metadata import version

__all__ = ["SENDS_TO_ITSELF", "runs_over_gloo"]

# PyTorch 2.11 sends messages from a rank to itself where that holds stages that follow each other; gloo cannot do that.
SENDS_TO_ITSELF = version("torch").startswith("2.11.")
_ONE_STAGE = ("gpipe", "1f1b")
_FOLDED = ("zbv", "dualpipev")  # the last stage is on the rank of the first


def runs_over_gloo(schedule: str, ranks: int) -> bool:
    """Whether the eager runtime runs a schedule of ours on so many ranks.

    >>> runs_over_gloo("1f1b", 1)
    True
    """
    return not SENDS_TO_ITSELF or schedule in _ONE_STAGE or (ranks > 1 and schedule not in _FOLDED)
