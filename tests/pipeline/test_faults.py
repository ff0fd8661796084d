"""A rank that fails in the middle of a step: real processes over gloo, killed, stopped or raising in an operation."""

import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from benchmarks.launch import rank_environment
from tests.pipeline.faulty import TIMEOUT

START_S = 300.0
ENDING_S = 60.0


def run_faulty(folder, ranks, kind, where, *, schedule="1f1b", ending="exit", layout="plain"):
    """What every rank that lives wrote; none of them may be left over."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.pipeline.faulty", kind, str(where), schedule, ending, layout, str(folder)]
    started = [
        subprocess.Popen(
            command, env=rank_environment(rank, ranks, None, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for rank in range(ranks)
    ]
    living = [process for rank, process in enumerate(started) if kind not in ("kill", "stop") or rank != where]
    try:
        until = time.monotonic() + START_S
        while any(process.poll() is None for process in living) and time.monotonic() < until:
            if len(list(folder.iterdir())) == len(living):
                until = min(until, time.monotonic() + ENDING_S)  # all have said what happened: now they end
            time.sleep(0.1)
        assert [process.poll() is None for process in living] == [False] * len(living)
        if kind == "kill":
            assert started[where].poll() == -signal.SIGKILL
    finally:
        for process in started:
            process.kill()
            process.wait()
    return {int(path.stem): json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def limit_s():
    """The timeout, and what asking the others may take on a busy machine."""
    return TIMEOUT.total_seconds() + 8


def test_a_rank_that_raises_stops_the_other_at_once_and_both_name_its_action_and_region(tmp_path):
    found = run_faulty(tmp_path, 2, "raise", 1, ending="end")
    for said in (found[0], found[1]):
        assert "rank 1 stopped: in 1F1 (stage 1, microbatch 1), region moe/dispatch, at touch" in said["said"]
        assert "ValueError: no experts today" in said["said"]
        assert said["took_s"] < TIMEOUT.total_seconds() / 2
        assert "this pipeline has stopped" in said["again"]
    assert "so rank 0 stopped: in " in found[0]["said"]
    assert "waited for rank 1" in found[0]["said"]


def test_a_killed_rank_stops_the_other_even_when_it_kept_the_store(tmp_path):
    found = run_faulty(tmp_path, 2, "kill", 0, ending="destroy")
    said = found[1]["said"]
    assert "rank 1 stopped: in 1F" in said
    assert "waited for rank 0, whose connection was closed" in said
    assert "no word from rank 0" in said
    assert found[1]["took_s"] < limit_s()


@pytest.mark.slow
@pytest.mark.parametrize(("where", "ending"), [(0, "exit"), (1, "destroy")])
def test_a_stopped_rank_is_named_within_the_timeout(tmp_path, where, ending):
    found = run_faulty(tmp_path, 2, "stop", where, ending=ending)
    said = found[1 - where]
    assert f"waited for rank {where}, in vain, {TIMEOUT.total_seconds():g} s long" in said["said"]
    assert "(stage " in said["said"]
    assert ", microbatch " in said["said"]
    assert f"no word from rank {where}" in said["said"]
    assert said["took_s"] < limit_s()


@pytest.mark.nightly
def test_ranks_that_do_not_talk_to_the_stopped_one_stop_as_well(tmp_path):
    found = run_faulty(tmp_path, 4, "stop", 2, schedule="dualpipev")
    assert sorted(found) == [0, 1, 3]
    for said in found.values():
        assert "no word from rank 2" in said["said"]
        assert said["took_s"] < limit_s()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["raise", "stop", "kill"])
def test_a_fault_crosses_expert_groups_to_the_other_pipeline(tmp_path, kind):
    found = run_faulty(tmp_path, 4, kind, 3, layout="experts")
    assert set(found) >= {0, 1, 2}
    for rank in (0, 1, 2):
        assert "stopped: in " in found[rank]["said"]
        assert found[rank]["took_s"] < limit_s()
    # The peer that was in a collective with it says which, and with whom.
    assert "region moe/dispatch" in found[2]["said"]
    assert "which waited for ranks [2, 3] of all" in found[2]["said"]
    if kind == "raise":
        assert "no experts today" in found[2]["said"]


@pytest.mark.slow
def test_pipelines_of_one_rank_that_share_experts_stop_together_in_their_first_step(tmp_path):
    found = run_faulty(tmp_path, 2, "raise", 1, schedule="gpipe", layout="alone", ending="end")
    for said in (found[0], found[1]):
        assert "rank 1 stopped: in 0F1 (stage 0, microbatch 1), region moe/dispatch, at touch: " in said["said"]
        assert said["took_s"] < TIMEOUT.total_seconds()  # tracing is in it
    assert "so rank 0 stopped: in 0F" in found[0]["said"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text"), [("memory", "OutOfMemoryError: out of memory"), ("interrupt", "Keyboard")])
def test_running_out_of_memory_and_an_interrupt_are_told_as_well(tmp_path, kind, text):
    found = run_faulty(tmp_path, 2, kind, 0)
    for said in found.values():
        assert text in said["said"]
        assert said["took_s"] < TIMEOUT.total_seconds() / 2
    assert "rank 0 stopped: in 0F1 (stage 0, microbatch 1), region moe/dispatch, at touch: " in found[1]["said"]
