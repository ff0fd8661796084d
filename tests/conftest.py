"""What every test runs under: one thread per process, and the reasons why a marked test is skipped."""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest  # noqa: E402
import torch  # noqa: E402

from benchmarks.netlab import available  # noqa: E402

torch.set_num_threads(1)
_NETLAB_OBSTACLE = pytest.StashKey[str | None]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip `root` and `gpu` tests where they cannot run, and say why."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if item.get_closest_marker("root"):
        stash = item.config.stash
        if _NETLAB_OBSTACLE not in stash:
            stash[_NETLAB_OBSTACLE] = available()
        if reason := stash[_NETLAB_OBSTACLE]:
            pytest.skip(reason)
