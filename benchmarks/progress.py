"""What rank 0 of a job tells the process that started it: progress as it goes, and its result as one line."""

import os
from collections.abc import Callable, Sequence

from annopipe.errors import AnnopipeError
from benchmarks.launch import run_ranks
from benchmarks.netlab import NetLab

__all__ = ["result_of_ranks", "tell", "tell_part", "tell_result"]


def tell(text: str) -> None:
    """Say what this job does now."""
    if os.environ["RANK"] == "0":
        print(f"progress:{text}", flush=True)


def tell_part(text: str) -> None:
    """Hand over a part of the result, one line, which is then there even if the job does not end."""
    if os.environ["RANK"] == "0":
        print(f"part:{text}", flush=True)


def tell_result(text: str) -> None:
    """Hand over the result, one line."""
    if os.environ["RANK"] == "0":
        print(f"result:{text}", flush=True)


def result_of_ranks(
    module: str,
    ranks: int,
    args: Sequence[str],
    *,
    lab: NetLab | None = None,
    timeout_s: float,
    progress: Callable[[str], None],
    part: Callable[[str], None] | None = None,
) -> str:
    """Run a job whose ranks use the functions above; returns its result.

    progress, part: called with what rank 0 says it does, and with each part of the result, as they come.

    Raises LaunchError when a rank fails, AnnopipeError when rank 0 ends without a result.
    """
    found: list[str] = []

    def on_line(_rank: int, line: str) -> None:
        kind, _, text = line.partition(":")
        if kind == "progress":
            progress(text)
        elif kind == "part" and part is not None:
            part(text)
        elif kind == "result":
            found.append(text)

    run_ranks(module, ranks, args=args, lab=lab, timeout_s=timeout_s, on_line=on_line)
    if not found:
        raise AnnopipeError(f"{module}: rank 0 ended without a result")
    return found[0]
