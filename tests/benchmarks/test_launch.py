import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.launch import LaunchError, run_ranks
from benchmarks.netlab import NetLab
from tests.processes import alive, signalled_process

Program = Callable[[str], dict[str, str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Write the module `program`, whose ranks leave their PIDs beside it; the environment in which they find it."""

    def write(source: str) -> dict[str, str]:
        head = "import os, pathlib, subprocess, sys, time\nrank = int(os.environ['RANK'])\n"
        note = f"def note(pid): pathlib.Path({str(tmp_path)!r}, f'{{pid}}.pid').touch()\nnote(os.getpid())\n"
        (tmp_path / "program.py").write_text(head + note + source)
        return {"PYTHONPATH": str(tmp_path)}

    return write


def left_over(folder: Path, expected: int) -> list[int]:
    """Which of the noted processes still run a little later."""
    pids = [int(path.stem) for path in folder.glob("*.pid")]
    assert len(pids) == expected
    deadline = time.monotonic() + 60
    while running := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return running


def test_each_rank_has_torchruns_environment_and_its_output_is_returned(program: Program) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR GLOO_SOCKET_IFNAME OMP_NUM_THREADS"
    env = program(
        f"print(*(os.environ[n] for n in {names.split()}), os.environ['MASTER_PORT'].isdigit(), sys.argv[1:])"
    )
    outputs = run_ranks("program", 2, args=["--fast"], env=env, timeout_s=200)
    assert outputs == [f"{rank} {rank} 2 127.0.0.1 lo 1 True ['--fast']\n" for rank in range(2)]


def test_lines_of_rank_0_arrive_while_it_runs(program: Program, tmp_path: Path) -> None:
    env = program(
        "print(rank, 'first')\n"
        f"while rank == 0 and not os.path.exists({str(tmp_path / 'seen')!r}): time.sleep(0.01)\n"
        "print(rank, 'last', end='')\n"
    )
    lines = []

    def on_line(rank: int, line: str) -> None:
        lines.append((rank, line))
        (tmp_path / "seen").touch()

    assert run_ranks("program", 2, env=env, timeout_s=200, on_line=on_line)[1] == "1 first\n1 last"
    assert lines == [(0, "0 first"), (0, "0 last")]


def test_more_output_than_a_pipe_holds_arrives_whole(program: Program) -> None:
    env = program("sys.stderr.write('e' * 1_000_000); sys.stdout.write('o' * 1_000_000)")
    assert run_ranks("program", 2, env=env, timeout_s=200) == ["o" * 1_000_000] * 2


def test_a_failing_rank_is_named_and_the_others_end(program: Program, tmp_path: Path) -> None:
    env = program("time.sleep(0.5)\nif rank == 1: sys.exit('no more coffee')\ntime.sleep(100)")
    with pytest.raises(LaunchError) as caught:
        run_ranks("program", 3, env=env, timeout_s=200)
    assert str(caught.value).splitlines() == [
        "program: rank 1 of 3 failed, and the others were stopped",
        "rank 1 exited with code 1; the end of its standard error:",
        "    no more coffee",
    ]
    assert left_over(tmp_path, 3) == []


def test_a_rank_that_dies_of_a_signal_is_named(program: Program) -> None:
    env = program("if rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(100)")
    with pytest.raises(LaunchError, match="rank 1 was killed by SIGKILL; the end of its standard error: nothing"):
        run_ranks("program", 2, env=env, timeout_s=200)


def test_a_rank_that_ignores_sigterm_ends_too(program: Program, tmp_path: Path) -> None:
    env = program(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(0.5)\n"
        "if rank == 1: sys.exit(3)\ntime.sleep(100)"
    )
    with pytest.raises(LaunchError, match="rank 1 exited with code 3"):
        run_ranks("program", 2, env=env, timeout_s=200)
    assert left_over(tmp_path, 2) == []


def test_hanging_ranks_end_at_the_timeout_and_say_where_they_hung(program: Program, tmp_path: Path) -> None:
    env = program("def stuck(): time.sleep(100)\nif rank: stuck()")
    with pytest.raises(LaunchError) as caught:
        run_ranks("program", 2, env=env, timeout_s=1)
    message = str(caught.value)
    assert message.startswith("program: rank 1 of 2 not finished after 1 s\nrank 1 was still running")
    assert "in stuck" in message
    assert left_over(tmp_path, 2) == []


@pytest.mark.parametrize("ending", ["pass", "sys.exit(1)"])
def test_children_of_ranks_end_too(program: Program, tmp_path: Path, ending: str) -> None:
    env = program(f"note(subprocess.Popen(['sleep', '100']).pid)\nif rank == 0: {ending}")
    if ending == "pass":
        run_ranks("program", 2, env=env, timeout_s=200)
    else:
        with pytest.raises(LaunchError, match="rank 0 exited with code 1"):
            run_ranks("program", 1, env=env, timeout_s=200)
    assert left_over(tmp_path, 4 if ending == "pass" else 2) == []


def test_an_exception_in_the_callback_ends_the_ranks(program: Program, tmp_path: Path) -> None:
    def interrupt(_rank: int, _line: str) -> None:
        raise KeyboardInterrupt

    env = program("time.sleep(0.5)\nprint('line')\ntime.sleep(100)")
    with pytest.raises(KeyboardInterrupt):
        run_ranks("program", 2, env=env, timeout_s=200, on_line=interrupt)
    assert left_over(tmp_path, 2) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_end_with_their_launcher(program: Program, tmp_path: Path, number: signal.Signals) -> None:
    env = program("print('up')\ntime.sleep(100)")
    source = (
        "from benchmarks.launch import run_ranks\n"
        f"run_ranks('program', 2, env={env!r}, timeout_s=200, on_line=lambda *line: print(*line, flush=True))"
    )
    with signalled_process([sys.executable, "-c", source], stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "0 up\n"
        while len(list(tmp_path.glob("*.pid"))) < 2:
            time.sleep(0.01)
        launcher.send_signal(number)
        assert launcher.wait(timeout=120) != 0
    assert left_over(tmp_path, 2) == []


@pytest.mark.parametrize(("ranks", "lab"), [(0, None), (3, NetLab(2))])
def test_a_number_of_ranks_that_cannot_be_started_is_refused(ranks: int, lab: NetLab | None) -> None:
    with pytest.raises(LaunchError, match=f"ranks={ranks}: give a positive number"):
        run_ranks("this", ranks, lab=lab, timeout_s=1)


ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((2,), float(rank + 1))
dist.all_reduce(x)
print(os.environ["MASTER_ADDR"], x.tolist())
dist.destroy_process_group()
__import__("benchmarks.launch").launch.end_rank()
"""


@pytest.mark.parametrize("where", ["loopback", pytest.param("lab", marks=pytest.mark.root)])
def test_gloo_finds_its_peers(program: Program, where: str) -> None:
    env = program(ALL_REDUCE)
    if where == "loopback":
        assert run_ranks("program", 2, env=env, timeout_s=200) == ["127.0.0.1 [3.0, 3.0]\n"] * 2
        return
    with NetLab(3) as lab:
        for _ in range(2):
            assert run_ranks("program", 3, env=env, lab=lab, timeout_s=200) == ["10.77.0.1 [6.0, 6.0]\n"] * 3


def test_the_environment_of_the_caller_is_not_changed(program: Program) -> None:
    before = dict(os.environ)
    run_ranks("program", 1, env=program(""), timeout_s=200)
    assert dict(os.environ) == before
