"""A process that helps to compile: ``python -m annopipe.compiling.helper``, with a job on standard input."""

import json
import sys

import torch

from annopipe.compiling.building import fill

__all__ = ["main"]


def main() -> None:
    """Compile the forms of the job that nobody else compiles."""
    job = json.load(sys.stdin)
    # What Inductor makes part of the keys of its cache.
    torch.set_num_threads(job["threads"])
    torch.set_default_dtype(getattr(torch, job["dtype"]))
    torch.use_deterministic_algorithms(job["deterministic"])
    fill(job["forms"], waits=False)


if __name__ == "__main__":
    main()
