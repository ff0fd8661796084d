import pytest
import torch
from torch import nn

import annopipe as ap


def pipeline(tied, stages=None):
    stages = stages or [nn.Linear(2, 2), nn.Linear(2, 2)]
    return ap.Pipeline(stages, ap.schedule("dualpipev", ranks=1, microbatches=2), loss_fn=nn.MSELoss(), tied=tied)


@pytest.mark.parametrize(
    ("tied", "match"),
    [
        ({"1.weight": "0.wait"}, "stage 0 has no parameter 'wait'"),
        ({"2.weight": "0.weight"}, "'2.weight' is no parameter of one of 2 stages"),
        ({"1.weight": "weight"}, "'weight' is no parameter"),
        ({"1.weight": "0.weight"}, "0.weight and 1.weight are on one rank and are different tensors"),
    ],
)
def test_what_cannot_be_tied_is_refused(tied, match):
    with pytest.raises(ap.PipelineError, match=match):
        pipeline(tied)


def test_parameters_of_a_rank_come_once_with_their_first_name():
    stages = [nn.Linear(2, 2), nn.Linear(2, 2)]
    stages[1].weight = stages[0].weight
    pipe = pipeline(ap.tied_parameters(stages), stages)
    assert [name for name, _ in pipe.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    pipe.step(torch.ones(4, 2), target=torch.zeros(4, 2))
    assert len([p for p in pipe.parameters() if p.grad is not None]) == 3


def test_chains_and_rings_of_ties_are_one_set():
    stages = [nn.Linear(2, 2) for _ in range(2)]
    stages[1].weight = stages[0].weight
    pipeline({"1.weight": "0.weight", "0.weight": "1.weight"}, stages)
