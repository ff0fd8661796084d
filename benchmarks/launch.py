"""Start the ranks of a program as processes on this machine, in a network lab or on the loopback device.

>>> run_ranks("this", 1, args=[], timeout_s=30)[0].splitlines()[0]
'The Zen of Python, by Tim Peters'
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from benchmarks.netlab import NetLab
from benchmarks.processes import LaunchError, OnLine, run_group

__all__ = ["LaunchError", "end_rank", "rank_environment", "run_ranks"]

_LAB_PORT = 29500
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def run_ranks(
    module: str,
    ranks: int,
    *,
    args: Sequence[str] = (),
    lab: NetLab | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float,
    on_line: OnLine | None = None,
) -> list[str]:
    """Run `python -m module args` once per rank and wait for all of them.

    Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME as under torchrun, and
    computes with one thread (OMP_NUM_THREADS=1, unless `env` says otherwise).

    Args:
        module: the module to run as a program.
        ranks: how many ranks.
        args: its arguments, the same on each rank.
        lab: a network lab that is set up, with at least `ranks` ranks; None for the loopback device.
        env: more environment variables, the same on each rank.
        timeout_s: how long all of it may take.
        on_line: called with (0, line) for each line that rank 0 prints, as it comes.

    Returns:
        What each rank wrote to standard output.

    Raises:
        LaunchError: a rank ended with an exit code other than 0, or the time was up; the message names the rank and
            ends with its last lines of standard error. No process is left.
    """
    if ranks < 1 or (lab is not None and ranks > lab.ranks):
        most = "" if lab is None else f", at most the lab's {lab.ranks}"
        raise LaunchError(f"{module}: ranks={ranks}: give a positive number{most}")
    python = [sys.executable, "-m", module, *args]
    commands = [python if lab is None else lab.command(rank, python) for rank in range(ranks)]
    port = _LAB_PORT if lab is not None else _free_port()
    environments = [rank_environment(rank, ranks, lab, port, env) for rank in range(ranks)]
    return run_group(commands, environments, what=module, timeout_s=timeout_s, on_line=on_line)


def rank_environment(
    rank: int, ranks: int, lab: NetLab | None, port: int, env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of one rank."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **(env or {}),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1" if lab is None else lab.address(0),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": _LOOPBACK if lab is None else lab.interface,
    }


def end_rank() -> NoReturn:
    """End this rank's process, successfully and at once; the last thing that a rank's program does.

    A thread of gloo may still be freeing tensors, for which it takes Python's lock. If Python is being taken down by
    then, the process ends with "terminate called without an active exception" although all has gone well.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
