"""Signals that end a process: which become exceptions, and which are left alone."""

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from benchmarks.signals import ENDED, Ended, exit_code, exit_on_signals, held_back
from tests.processes import handled

ENDING = [signal.SIGTERM, signal.SIGHUP]


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


@pytest.mark.parametrize("context", [exit_on_signals, held_back])
def test_outside_the_main_thread_nothing_changes(context: Callable[[], AbstractContextManager[None]]) -> None:
    found = []

    def enter() -> None:
        with context():
            found.append(signal.getsignal(signal.SIGINT))
            found.append(signal.getsignal(signal.SIGTERM))

    with handled(signal.SIGTERM, signal.SIG_DFL):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert found == [signal.getsignal(signal.SIGINT), signal.SIG_DFL]


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_a_signal_that_is_held_back_raises_when_the_block_is_done(number: signal.Signals) -> None:
    done = []
    with handled(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL):
        with pytest.raises(ENDED) as caught, exit_on_signals(), held_back():
            signal.raise_signal(number)
            done.append("work")
        assert exit_code(caught.value) == 128 + number
    assert done == ["work"]


def test_signals_that_are_held_back_together_raise_once_in_blocks_in_blocks() -> None:
    done = []
    with handled(signal.SIGTERM, signal.SIG_DFL), pytest.raises(Ended), exit_on_signals(), held_back():
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_an_error_of_the_block_is_not_hidden_by_a_signal_and_handlers_are_those_of_before() -> None:
    with handled(signal.SIGTERM, signal.SIG_DFL), exit_on_signals():
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(ZeroDivisionError), held_back():
            signal.raise_signal(signal.SIGTERM)
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is before


def test_held_back_leaves_alone_what_raises_nothing() -> None:
    with handled(signal.SIGHUP, signal.SIG_IGN), handled(signal.SIGTERM, signal.SIG_DFL), held_back():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
