"""Process groups for the model tests: a group of one in this process, and one run of four worker processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.launch import run_ranks

HERE = Path(__file__).parent


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
    run_ranks(
        "tests.models.ep_worker", 4, args=[str(directory)], env={"PYTHONPATH": str(HERE.parents[1])}, timeout_s=400
    )
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(4)]
