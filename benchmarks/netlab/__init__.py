"""Network namespaces joined by a bridge, each with a limited rate: a slow network on one machine, to measure on.

Needs root and iproute2 on Linux; `available()` says why if it does not work.
By hand: `python -m benchmarks.netlab run --ranks 2 --rate 400mbit -- COMMAND ...`, `python -m benchmarks.netlab sweep`.
"""

from benchmarks.netlab.errors import NetLabError
from benchmarks.netlab.lab import NetLab, available
from benchmarks.netlab.removal import sweep

__all__ = ["NetLab", "NetLabError", "available", "sweep"]
