"""What a pipeline's state takes and refuses, on one rank; the program parallel_cases.py has those of several."""

import pytest
import torch
from torch import nn

import annopipe as ap


class Counted(nn.Linear):
    """Keeps something beside tensors."""

    count = 0

    def get_extra_state(self):
        return self.count

    def set_extra_state(self, state):
        self.count = state


def pipeline(count=0):
    torch.manual_seed(count)
    stages = ap.split(nn.Sequential(Counted(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)), at=["1"])
    stages[0].get_submodule("0").count = count
    pipe = ap.Pipeline(stages, ap.schedule("zbv", ranks=1, microbatches=2), loss_fn=nn.MSELoss())
    return pipe, torch.optim.AdamW(pipe.parameters(), lr=0.1)


def step(pipe, optimizer):
    pipe.step(torch.ones(4, 2), target=torch.zeros(4, 1))
    optimizer.step()
    optimizer.zero_grad()


def test_state_of_another_pipeline_is_taken_whole():
    (first, optimizer), (second, other) = pipeline(1), pipeline(2)
    for _ in range(2):
        step(first, optimizer)
    ap.load_state_dict(second, ap.state_dict(first, optimizer), other)
    for _ in range(2):
        step(first, optimizer)
        step(second, other)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert ap.state_dict(second)["model"]["0._extra_state"] == 1


def test_a_state_before_the_first_step_changes_no_training():
    (first, optimizer), (second, other) = pipeline(), pipeline()
    state = ap.state_dict(first, optimizer)
    assert not optimizer.state
    ap.load_state_dict(second, state, other)
    for _ in range(2):
        step(first, optimizer)
        step(second, other)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_gradients_that_are_there_do_not_hide_the_state_of_the_optimizer():
    (first, optimizer), (second, other) = pipeline(1), pipeline(2)
    step(first, optimizer)
    second.step(torch.ones(4, 2), target=torch.zeros(4, 1))
    before = [parameter.grad.clone() for parameter in second.parameters()]
    ap.load_state_dict(second, ap.state_dict(first, optimizer), other)
    assert all(torch.equal(p.grad, old) for p, old in zip(second.parameters(), before, strict=True))
    assert len(other.state) == len(before)


def test_a_shape_that_does_not_fit_is_refused():
    pipe, optimizer = pipeline()
    state = ap.state_dict(pipe, optimizer)
    wrong = {**state, "model": {**state["model"], "2.weight": torch.ones(1)}}
    with pytest.raises(ap.PipelineError, match=r"2\.weight in the shape \(1,\), and this rank holds \(1, 3\) of it"):
        ap.load_state_dict(pipe, wrong)
    wrong = {**state, "optimizer": {**state["optimizer"], "state.1.bias.exp_avg": torch.ones(1)}}
    with pytest.raises(ap.PipelineError, match=r"state\.1\.bias\.exp_avg in the shape \(1,\)"):
        ap.load_state_dict(pipe, wrong, optimizer)
    with pytest.raises(ap.PipelineError, match=r"the state has no '2\.weight' in 'model'"):
        ap.load_state_dict(pipe, {"model": {k: v for k, v in state["model"].items() if k != "2.weight"}})


def test_what_the_optimizer_keeps_of_a_parameter_with_two_names_is_there_under_both():
    first, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    last.weight = first.weight
    stages = [nn.Sequential(first), nn.Sequential(nn.Identity(), last)]
    pipe = ap.Pipeline(stages, ap.schedule("zbv", ranks=1, microbatches=1), loss_fn=nn.MSELoss())
    state = ap.state_dict(pipe, torch.optim.AdamW(pipe.parameters()))["optimizer"]
    assert {"state.0.weight.exp_avg", "state.1.weight.exp_avg", "param_groups.1.weight.lr"} <= state.keys()


def test_an_optimizer_of_other_parameters_is_refused():
    pipe, _ = pipeline()
    with pytest.raises(ap.PipelineError, match="the optimizer has 2 parameters that are not of this rank's stages"):
        ap.state_dict(pipe, torch.optim.AdamW(nn.Linear(2, 2).parameters()))
