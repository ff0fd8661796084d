"""Processes that tests send signals to, this one among them."""

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def signalled_process(command: Sequence[str], *, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that a signal ends, however the tests were started, and that ends with the block at the latest.

    Under `nohup` SIGHUP is ignored, in the background of a script SIGINT; children inherit that, and `exit_on_signals`
    respects it.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=_listen,  # noqa: PLW1509 - calls nothing that takes a lock
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def handled(number: signal.Signals, handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """What this process does about a signal, inside the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _listen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
