"""Process groups for the model tests: a group of one in this process, and one run of four worker processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).parent
TIMEOUT_S = 400


@pytest.fixture(scope="module")
def group_of_one() -> Iterator[dist.ProcessGroup]:
    """A gloo group with this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    assert world is not None
    yield world
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of the four processes of ep_worker.py computed, by rank."""
    directory = tmp_path_factory.mktemp("ep")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "GLOO_SOCKET_IFNAME": "lo"}
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "ep_worker.py"), str(directory)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            ended = f"ended with {process.wait(TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            ended = f"killed after {TIMEOUT_S} s"
    if process.wait() != 0:
        pytest.fail(f"worker processes {ended}\n{(directory / 'log').read_text()[-5000:]}")
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(4)]
