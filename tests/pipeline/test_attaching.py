"""Scripts for torch.distributed.pipelining have the same losses, outputs and gradients with ``ap.attach``."""

import pytest

from tests.pipeline.cases import check_cases
from tests.pipeline.releases import OF_2_11


@pytest.mark.slow
def test_every_case_holds():
    check_cases("attach_cases", 2)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_case_holds_on_other_counts_of_ranks(ranks):
    if OF_2_11 and ranks == 1:
        pytest.skip("PyTorch 2.11 sends messages between stages of one rank, which gloo cannot do")
    check_cases("attach_cases", ranks)
