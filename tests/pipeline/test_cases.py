"""The cases of rank programs beside this file: what crosses between stages, recomputation, shapes, nano-batches.

Those of state and of parallel stages are in test_parallel_cases.py: each file takes about half of the time.
"""

import pytest

from benchmarks.launch import run_ranks
from tests.pipeline.cases import check_cases

PROGRAMS = ("boundary_cases", "shape_cases", "nano_cases")


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_case_holds(program):
    check_cases(program, 2)


@pytest.mark.slow
def test_ranks_print_no_warnings():
    module = "tests.pipeline.quiet"
    assert run_ranks(module, 2, timeout_s=400) == ["quiet\n", "quiet\n"]


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_case_holds_on_other_counts_of_ranks(program, ranks):
    check_cases(program, ranks)
