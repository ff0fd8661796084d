"""A process that helps to compile: ``python -m annopipe.compiling.helper JOB``, a file that says what."""

import json
import signal
import sys
from pathlib import Path

import torch

from annopipe.compiling.building import fill

__all__ = ["main"]


def main() -> None:
    """Compile the forms of the job that nobody else compiles."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word; the process that it helps says why
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # What Inductor makes part of the keys of its cache.
    torch.set_num_threads(job["threads"])
    torch.set_default_dtype(getattr(torch, job["dtype"]))
    torch.use_deterministic_algorithms(job["deterministic"])
    fill(job["forms"], waits=False)


if __name__ == "__main__":
    main()
