"""How many processors there are: of a machine whose processors are shared out, those of this process."""

import os

__all__ = ["processors"]


def processors() -> int:
    """How many processors this process may run on: as ``taskset``, a container or a batch system allow it.

    >>> processors() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
