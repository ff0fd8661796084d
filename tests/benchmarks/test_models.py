"""What ``annopipe bench models`` compares: gains over the first schedule, and towers as one chain."""

import sys

import pytest

from annopipe.errors import AnnopipeError, CostError
from annopipe.tuning.layers import Layer
from annopipe.tuning.workload import Workload
from benchmarks.models.apart import trace_apart
from benchmarks.models.comparison import as_one_chain, compared, of_library
from benchmarks.models.tracing import trace_here

LAYER = Layer(1.0, 1.0, 1.0, activation=1.0)
HEAD = Layer(4.0, 4.0, 4.0, activation=1.0)


def test_gains_are_over_the_first_schedule() -> None:
    work = Workload((*[LAYER] * 7, HEAD), ranks=2, microbatches=4)
    rows = compared("small", work, ("1f1b", "interleaved-1f1b"), effort=5_000)
    assert [row.schedule.partition("(")[0] for row in rows[:2]] == ["1f1b", "interleaved-1f1b"]
    assert rows[0].gain == 1.0
    assert rows[-1].schedule.startswith("found: ")
    assert rows[-1].gain >= 1.0
    for row in rows:
        assert sum(row.account.values()) == pytest.approx(row.step)


def test_towers_as_a_chain_have_the_schedules_of_chains() -> None:
    work = Workload((LAYER,), ranks=2, microbatches=2, towers=((LAYER,) * 2, (LAYER,) * 2))
    assert not of_library(work, ["1f1b"])
    chain = as_one_chain(work)
    assert len(chain.layers) == 5
    assert [each.trial.rules.library for each in of_library(chain, ["1f1b"])] == ["1f1b"]


def test_tracing_says_what_it_took() -> None:
    found = trace_here(layers=1, experts_of=64, tokens=64)
    assert found.seconds > 0.0
    assert found.peak_bytes > 2**27
    assert found.nodes > 100


def test_gains_over_nothing_are_refused() -> None:
    with pytest.raises(CostError, match="small: there is no zbv of .* to compare with: give a larger batch"):
        compared("small", Workload((LAYER,) * 2, ranks=2, microbatches=4), ("zbv", "1f1b"), effort=0)


def test_a_process_that_traces_and_fails_is_told_of() -> None:
    with pytest.raises(AnnopipeError, match="ended with code 3; its last words: nothing"):
        trace_apart([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(AnnopipeError, match="ended with code -9; it needs 1 GiB"):
        trace_apart([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
