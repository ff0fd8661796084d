"""Processes that tests send signals to."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


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


def _listen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
