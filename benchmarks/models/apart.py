"""Run ``benchmarks.models.tracing`` in a process of its own, whose memory is that of tracing alone; no torch here."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from annopipe.errors import AnnopipeError

__all__ = ["Traced", "trace_apart"]

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Traced:
    """What tracing took: seconds of the clock and of the processor, bytes, nodes of the forward and the backward."""

    seconds: float
    processor_s: float
    peak_bytes: int
    nodes: int


def trace_apart(command: Sequence[str] = (sys.executable, "-m", "benchmarks.models.tracing")) -> Traced:
    """What the program prints.

    Raises AnnopipeError where it fails, is killed or takes too long.
    """
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, cwd=root)
    except subprocess.TimeoutExpired as error:
        raise AnnopipeError(f"tracing took more than {_TIMEOUT_S:g} s: try again when less else runs here") from error
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[-5:]) or "nothing"
        hint = "; it needs 1 GiB: was there so much?" if done.returncode < 0 else ""
        raise AnnopipeError(f"the process that traces ended with code {done.returncode}{hint}; its last words: {said}")
    return Traced(**json.loads(done.stdout))
