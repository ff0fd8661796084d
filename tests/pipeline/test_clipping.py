import pytest
import torch
from torch import nn

import annopipe as ap


def stepped():
    pipe = ap.Pipeline([nn.Linear(3, 2)], ap.schedule("gpipe", ranks=1, microbatches=2), loss_fn=nn.MSELoss())
    torch.manual_seed(0)
    pipe.step(torch.randn(4, 3), target=torch.randn(4, 2))
    return pipe


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_on_one_rank_it_is_torchs(norm_type, max_norm):
    pipe = stepped()
    before = [p.grad.clone() for p in pipe.parameters()]
    norm = ap.clip_grad_norm_(pipe, max_norm, norm_type)
    clipped = [p.grad.clone() for p in pipe.parameters()]
    for parameter, gradient in zip(pipe.parameters(), before, strict=True):
        parameter.grad = gradient
    expected = torch.nn.utils.clip_grad_norm_(pipe.parameters(), max_norm, norm_type)
    torch.testing.assert_close(norm.float(), expected)
    for own, parameter in zip(clipped, pipe.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad)


def test_sharded_parameters_need_their_group():
    pipe = stepped()
    with pytest.raises(ap.PipelineError, match="need the group"):
        ap.clip_grad_norm_(pipe, 1.0, sharded=pipe.parameters())
