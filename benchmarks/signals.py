"""Turn the signals that end a process into exceptions, so that `with` and `finally` clean up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """While this is open, SIGTERM and SIGHUP raise SystemExit (SIGINT raises KeyboardInterrupt by itself).

    A handler that is already there stays. Outside the main thread, where Python sets no handlers, nothing changes.
    """
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
