import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.scheduling import placement
from annopipe.scheduling.schedule_class import Schedule


def two_forwards_at_once():
    rows = [["(0F0;0F1)OVERLAP", "1F0", "1F1", "1B0", "1B1", "0B0", "0B1"]]
    return Schedule.of(placement.v(1), 2, rows)


def test_two_forwards_of_a_stage_with_buffers_in_one_graph_are_refused():
    pipe = ap.Pipeline([nn.BatchNorm1d(2), nn.Linear(2, 2)], two_forwards_at_once(), loss_fn=nn.MSELoss())
    with pytest.raises(ap.PipelineError, match="two forwards of stage 0, which updates its buffer"):
        pipe.step(torch.ones(4, 2), target=torch.zeros(4, 2))


def test_two_forwards_of_a_stage_without_buffers_run_in_one_graph():
    pipe = ap.Pipeline([nn.Linear(2, 2), nn.Linear(2, 2)], two_forwards_at_once(), loss_fn=nn.MSELoss())
    assert len(pipe.step(torch.ones(4, 2), target=torch.zeros(4, 2))) == 2


def test_a_combination_of_backwards_that_differentiate_nothing_is_nothing():
    rows = [["0F0", "0F1", "1F0", "1F1", "1B0", "(1B1;0B0)OVERLAP", "0B1"]]
    stages = [nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2).requires_grad_(False)]
    pipe = ap.Pipeline(stages, Schedule.of(placement.v(1), 2, rows), loss_fn=nn.MSELoss())
    assert len(pipe.step(torch.ones(4, 2), target=torch.zeros(4, 2))) == 2
    assert pipe.plans() == {}
