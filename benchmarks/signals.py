"""Turn the signals that end a process into exceptions, so that `with` and `finally` clean up."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

__all__ = ["ENDED", "Ended", "exit_code", "exit_on_signals", "held_back"]

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ended(SystemExit):
    """A signal asks the process to end; the code is what a shell says of a program that the signal ended."""


# Somebody wants the process to end: what is done so far can be kept.
ENDED = (KeyboardInterrupt, Ended)


def exit_code(ended: BaseException) -> int:
    """With which code the process ends then.

    >>> exit_code(Ended(143)), exit_code(KeyboardInterrupt())
    (143, 130)
    """
    return int(ended.code or 0) if isinstance(ended, Ended) else 128 + signal.SIGINT


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """While this is open, SIGTERM and SIGHUP raise Ended (SIGINT raises KeyboardInterrupt by itself).

    A handler that is already there stays. Outside the main thread, where Python sets no handlers, nothing changes.
    """
    with _handling(_ENDING, lambda before: before is signal.SIG_DFL, _exit):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """While this is open, a signal that would raise an exception waits; it is handled when the block has ended well.

    For seconds of work in C++ that calls Python, such as tracing: an exception that a handler raises in there may
    meet code that throws none, which aborts the process. Outside the main thread nothing changes.
    """
    came: list[int] = []
    with _handling((signal.SIGINT, *_ENDING), callable, lambda number, _: came.append(number)):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _handling(
    numbers: Iterable[signal.Signals],
    replaced: Callable[[object], bool],
    handler: Callable[[int, FrameType | None], object],
) -> Iterator[None]:
    """While this is open, signals whose handler may be replaced have this one; outside the main thread they keep it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as stack:
        for number in numbers:
            before = signal.getsignal(number)
            if replaced(before):
                stack.callback(signal.signal, number, before)
                signal.signal(number, handler)
        yield


def _exit(number: int, _frame: FrameType | None) -> None:
    raise Ended(128 + number)
