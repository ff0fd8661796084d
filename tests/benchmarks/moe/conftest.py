"""Rows of results do not depend on what the installed PyTorch can run over gloo; test_moe.py and watched.py run it."""

import pytest


@pytest.fixture(autouse=True)
def every_schedule_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.eager_names.SENDS_TO_ITSELF", False)
