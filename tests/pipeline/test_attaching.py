"""Scripts for torch.distributed.pipelining have the same losses, outputs and gradients with ``ap.attach``."""

import pytest

from tests.pipeline.test_cases import run_cases


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_case_holds(ranks):
    run_cases("attach_cases", ranks)


@pytest.mark.nightly
def test_every_case_holds_on_four_ranks():
    run_cases("attach_cases", 4)
