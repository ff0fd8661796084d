"""Stages with nano-batches inside: single actions are planned, change nothing, and cost what their plan takes."""

import dataclasses
import functools
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.scheduling import placement
from annopipe.scheduling.schedule_class import Schedule

PATTERN = "B.combine | F.attention ; F0.dispatch | F1.experts"
Inputs = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def stage() -> Iterator[DeepSeekV3Stage]:
    """A dense block and one with experts, whose 21 tokens are cut into 11 and 10."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = dataclasses.replace(DeepSeekV3Config.tiny(), dense_layers=1, nano_batches=2)
    yield DeepSeekV3Stage(config, group=dist.group.WORLD)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def batch() -> Inputs:
    x, target = torch.randn(2, 6, 7, 32, generator=torch.Generator().manual_seed(0))
    return x, target


@pytest.fixture(scope="module")
def expected(stage: DeepSeekV3Stage, batch: Inputs) -> dict[str, torch.Tensor]:
    """By eager autograd."""
    for x, target in zip(*(each.split(3) for each in batch), strict=True):
        nn.functional.mse_loss(stage(x), target).backward()
    return {name: p.grad.clone() for name, p in stage.named_parameters() if p.grad is not None}


def trained(stage: DeepSeekV3Stage, schedule: Schedule, batch: Inputs, policy: str) -> ap.Pipeline:
    stage.zero_grad()
    pipe = ap.Pipeline([stage], schedule, loss_fn=nn.MSELoss(), policy=policy)
    pipe.step(batch[0], target=batch[1])
    return pipe


@pytest.mark.parametrize(
    ("name", "policy", "planned"),
    [
        ("naive", "auto", "FB"),
        ("naive", "dualpipe", "FB"),
        ("naive", PATTERN, "FB"),
        ("zb-h1", "alternate", "FI"),  # W communicates nothing
    ],
)
def test_single_actions_are_planned_and_change_nothing(
    stage: DeepSeekV3Stage, batch: Inputs, expected: dict, name: str, policy: str, planned: str
) -> None:
    pipe = trained(stage, ap.schedule(name, ranks=1, microbatches=2), batch, policy)
    assert list(pipe.plans()) == [((kind, 0),) for kind in planned]
    assert all(torch.equal(p.grad, expected[key]) for key, p in stage.named_parameters() if p.grad is not None)
    with torch.no_grad():
        assert all(map(torch.equal, pipe.eval(batch[0]) or [], map(stage, batch[0].split(3))))


def test_lanes_may_be_in_the_lanes_of_nano_batched_actions(
    stage: DeepSeekV3Stage, batch: Inputs, expected: dict
) -> None:
    rows = [["0F0/2", "0B0/2", "0F1", "0B1"]]
    pipe = trained(stage, Schedule.of(placement.linear(1), 2, rows), batch, "auto")
    lanes = pipe.plans()[("F", 0, 2),].problem.lanes
    assert {"F0", "F00", "F01", "F1", "F10", "F11"} == set(lanes)
    for key, p in stage.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, expected[key], atol=1e-6, rtol=1e-5)


def test_an_action_costs_what_its_plan_takes(stage: DeepSeekV3Stage, batch: Inputs) -> None:
    costs = functools.partial(ap.costs.roofline, hardware="h100")
    stage.zero_grad()
    schedule = ap.schedule("naive", ranks=1, microbatches=2)
    pipe = ap.Pipeline([stage], schedule, loss_fn=nn.MSELoss(), policy="dualpipe", costs=costs)
    pipe.step(batch[0], target=batch[1])
    forward = pipe.plans()[("F", 0),].timeline
    x = batch[0][:3]
    graphs = ap.trace(stage, (x,), loss_fn=nn.MSELoss(), target=batch[1][:3])
    found = ap.costs.actions(graphs, costs, "dualpipe")
    assert pytest.approx(found.F) == forward.makespan
    assert isinstance(found.exposed, dict)
    assert found.exposed["F"] == pytest.approx(forward.exposed_comm)
