"""The suite for schedule search can be read, and its rows add up."""

import pytest

from annopipe.tuning.workload import Workload
from benchmarks.tuning.command import SUITE, measure


def test_the_suite_has_its_workloads() -> None:
    works = Workload.all_from_toml(SUITE)
    assert len({work.name for work in works}) == len(works) == 14
    assert sum(bool(work.towers) for work in works) == 1


def test_a_row_says_how_much_longer_the_library_takes() -> None:
    works = [work for work in Workload.all_from_toml(SUITE) if work.name == "odd-counts"]
    (row,) = measure(works, seed=0, effort=10_000, copies=2)
    assert row.ratio == pytest.approx(row.library_step / row.found_step)
    assert row.ratio >= 1.0
    assert row.gap >= 1.0
