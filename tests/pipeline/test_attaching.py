"""Scripts for torch.distributed.pipelining have the same losses, outputs and gradients with ``ap.attach``."""

import pytest

from tests.pipeline.cases import check_cases


@pytest.mark.slow
def test_every_case_holds():
    check_cases("attach_cases", 2)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_case_holds_on_other_counts_of_ranks(ranks):
    check_cases("attach_cases", ranks)
