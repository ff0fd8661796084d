"""Signals that end a process: which become exceptions, and which are left alone."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.signals import Ended, exit_code, exit_on_signals

ENDING = [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def handled(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_becomes_an_exception_with_the_shells_code_once(number: signal.Signals) -> None:
    with handled(number, signal.SIG_DFL):
        with pytest.raises(Ended) as caught, exit_on_signals():
            signal.raise_signal(number)
        assert exit_code(caught.value) == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    with handled(number, signal.SIG_IGN), exit_on_signals():
        signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN


def test_outside_the_main_thread_nothing_changes() -> None:
    found = []

    def enter() -> None:
        with exit_on_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    with handled(signal.SIGTERM, signal.SIG_DFL):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert found == [signal.SIG_DFL]
