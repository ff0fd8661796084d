"""Run ``benchmarks.models.tracing`` in a process of its own, whose memory is that of tracing alone; no torch here."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Traced", "trace_apart"]

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Traced:
    """What tracing took: seconds of the clock and of the processor, bytes, nodes of the forward and the backward."""

    seconds: float
    processor_s: float
    peak_bytes: int
    nodes: int


def trace_apart() -> Traced:
    """What the program prints."""
    command = [sys.executable, "-m", "benchmarks.models.tracing"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S, cwd=root)
    return Traced(**json.loads(done.stdout))
