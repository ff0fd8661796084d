"""How many processors there are: of a machine whose processors are shared out, those of this process."""

import os

__all__ = ["processors"]


def processors() -> int:
    """How many processors this process is bound to: by ``taskset``, a batch system, or a container's set of them.

    A share of the time of more processors (``docker run --cpus``) does not show here.

    >>> processors() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
