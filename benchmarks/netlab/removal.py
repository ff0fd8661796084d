"""Take labs down: their processes first, then their namespaces."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.netlab.commands import attempt
from benchmarks.netlab.errors import NetLabError
from benchmarks.netlab.ownership import NAMESPACES, labs

_GRACE_S = 1.0

Inode = tuple[int, int]


def sweep() -> list[str]:
    """Remove the labs of processes that are gone (killed, say), with whatever still runs in them.

    Returns:
        The names of the labs that were removed.
    """
    abandoned = {lab: names for lab, (owner, names) in labs().items() if not owner.alive()}
    for names in abandoned.values():
        remove(names)
    return sorted(abandoned)


def remove(names: Iterable[str]) -> None:
    """Remove these namespaces and end the processes in them: SIGTERM, a second to obey, SIGKILL."""
    names = list(names)
    with ExitStack() as stack:
        # An open namespace stays, and its inode means it and no other, until this is done.
        inodes = {inode for name in names if (inode := stack.enter_context(_opened(NAMESPACES / name)))}
        _end_processes(inodes)
        for name in names:
            _delete(name)
        _end_processes(inodes)  # a process that was on its way in


def _end_processes(inodes: set[Inode]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while pids := _signal_all(inodes, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL):
        if time.monotonic() > deadline + 5 * _GRACE_S:
            raise NetLabError(f"processes do not end on SIGKILL, and their network namespace cannot go: {pids}")
        time.sleep(0.02)


@contextmanager
def _opened(path: Path) -> Iterator[Inode | None]:
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with handle:
        yield _inode(os.fstat(handle.fileno()))


def _delete(name: str) -> None:
    result = attempt(["ip", "netns", "delete", name])
    try:
        # A crash between making the file and mounting the namespace on it leaves an empty file.
        (NAMESPACES / name).unlink(missing_ok=True)
    except OSError as error:
        raise NetLabError(f"namespace {name} cannot be removed: {result.stderr.strip() or error}") from error


def _signal_all(inodes: set[Inode], number: signal.Signals) -> list[int]:
    """Signal each process in these namespaces, and return their PIDs; this process is spared."""
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if pid == os.getpid() or _namespace_of(pid) not in inodes:
            continue
        found.append(pid)
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                # The handle is of whoever has the PID now: look again before the signal.
                if _namespace_of(pid) in inodes:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)
    return found


def _namespace_of(pid: int) -> Inode | None:
    try:
        return _inode(Path(f"/proc/{pid}/ns/net").stat())
    except OSError:
        return None


def _inode(stat: os.stat_result) -> Inode:
    return stat.st_dev, stat.st_ino
