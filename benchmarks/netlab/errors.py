"""The exception that netlab raises."""

from annopipe.errors import AnnopipeError


class NetLabError(AnnopipeError, RuntimeError):
    """A rate-limited network cannot be described, set up or used on this machine."""
