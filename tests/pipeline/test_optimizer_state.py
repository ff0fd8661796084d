"""State that is asked for early leaves an optimizer as it is, and is what its first step begins from."""

import copy

import pytest
import torch
from torch import nn

from annopipe.pipeline.optimizer_state import begun

KINDS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
}


def train(parameters, optimizer, steps=3):
    for step in range(steps):
        for at, parameter in enumerate(parameters):
            parameter.grad = torch.full_like(parameter, 1.0 + step + at)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in parameters]


def made(build):
    parameters = [nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.ones(2))]
    return parameters, build(parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_asking_changes_nothing(kind):
    (plain, optimizer), (asked, other) = made(KINDS[kind]), made(KINDS[kind])
    asked[0].grad = torch.ones(3)
    with begun(other):
        assert all(parameter.grad is None for parameter in asked)
    assert torch.equal(asked[0].grad, torch.ones(3))
    assert asked[1].grad is None
    assert len(other.state) == len(optimizer.state)
    assert [{**g, "params": 0} for g in other.param_groups] == [{**g, "params": 0} for g in optimizer.param_groups]
    for own, expected in zip(train(asked, other), train(plain, optimizer), strict=True):
        assert torch.equal(own, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_training_from_that_state_is_training_from_the_start(kind):
    (plain, optimizer), (begins, other) = made(KINDS[kind]), made(KINDS[kind])
    with begun(other):
        state = copy.deepcopy(other.state_dict())
    other.load_state_dict(state)
    for own, expected in zip(train(begins, other), train(plain, optimizer), strict=True):
        assert torch.equal(own, expected)


def test_state_that_is_there_stays_and_what_lacks_is_made():
    parameters, optimizer = made(KINDS["adam"])
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer.add_param_group({"params": [frozen]})
    train(parameters[:1], optimizer)
    before = copy.deepcopy(optimizer.state[parameters[0]])
    with begun(optimizer) as fresh:
        assert len(fresh) == 1
        assert fresh[0] is parameters[1]
        assert float(optimizer.state[parameters[1]]["step"]) == 0
    assert optimizer.state.keys() == {parameters[0]}
    assert all(torch.equal(value, before[name]) for name, value in optimizer.state[parameters[0]].items())


def test_an_optimizer_that_cannot_step_is_left_alone():
    parameters, optimizer = made(KINDS["adam"])
    optimizer.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError), begun(optimizer):
        pass
    assert [parameter.grad for parameter in parameters] == [None, None]
    assert optimizer.param_groups[0]["lr"] == 0.1
