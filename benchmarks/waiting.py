"""Wait for a moment more exactly than `time.sleep` does."""

import time

__all__ = ["wait_until"]

_SPIN_S = 0.0002  # sleeping is not exact: the last stretch is spent polling the clock


def wait_until(moment_s: float) -> None:
    """Return when `time.perf_counter` has reached the moment; at once when it has passed.

    >>> started_s = time.perf_counter()
    >>> wait_until(started_s + 0.002)
    >>> time.perf_counter() - started_s >= 0.002
    True
    """
    left_s = moment_s - time.perf_counter()
    if left_s > _SPIN_S:
        time.sleep(left_s - _SPIN_S)
    while time.perf_counter() < moment_s:
        pass
