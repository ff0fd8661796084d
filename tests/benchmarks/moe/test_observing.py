"""What the profiler sees of a step: waits of collectives and memory, on real ranks."""

import pytest

from benchmarks.launch import run_ranks


@pytest.mark.slow
def test_steps_of_all_runtimes_are_watched_alike_and_known_ones_show_what_they_do() -> None:
    run_ranks("tests.benchmarks.moe.watched", 2, timeout_s=400)
