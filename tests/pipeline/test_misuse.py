"""Mistakes in making and calling a pipeline: found before anything is sent, with what happened and what to do."""

import dataclasses
import json
from datetime import timedelta

import pytest
import torch
from torch import nn

import annopipe as ap
from benchmarks.launch import run_ranks
from tests.pipeline.gradients import Block, loss_of

# What both ranks raise; a pair where the rank with the mistake says it in its own words.
SAID = {
    "microbatches": "rank 0 and rank 1 have different arguments, the number of microbatches: 2 and 4;",
    "schedule": "rank 0 and rank 1 have different arguments, the schedule: ",
    "policy": "rank 0 and rank 1 have different arguments, the policy: auto and list",
    "call": "rank 0 and rank 1 have different arguments, call: step and prepare",
    "loss_fn": "the schedule has backwards and there is no loss: give Pipeline a loss_fn",
    "inputs": "stage 0 on rank 0: CaptureError: the arguments do not fit Block.forward(x): too many positional",
    "no inputs": "the arguments do not fit Block.forward(x): missing a required argument: 'x'",
    "no target": "step was called without target on this rank, that of the loss",
    "uncut": "x has shape (3, 6), and its dimension 0 cannot be cut into 2 equal microbatches",
    "cut": "stage 1 on rank 1: CaptureError: cannot trace Wide",
    "no grad": "step differentiates, and is called inside torch.no_grad",
    "meta": "1.first.weight is on the meta device and has no values",
    "policy name": "planning combined graphs failed on rank 0: ",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("misused")
    run_ranks("tests.pipeline.misused", 2, args=[str(folder)], timeout_s=400)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", sorted(SAID))
def test_a_mistake_is_raised_on_both_ranks(found, name):
    for rank in range(2):
        assert SAID[name] in found[rank][name]


def test_after_mistakes_the_same_groups_run_a_step(found):
    assert [found[rank]["fine"] for rank in range(2)] == ["", ""]


def test_a_rank_that_calls_step_alone_is_told_so_within_the_timeout(found):
    assert "waited for all ranks to call step, and that failed within 3 s" in found[0]["alone"]
    assert "did not make the same call" in found[0]["alone"]
    assert "no word from rank 1" in found[0]["alone"]


def one(count=1, name="gpipe", **options):
    stages = [Block(6, index) for index in range(count)]
    return ap.Pipeline(stages, ap.schedule(name, ranks=1, microbatches=2), **{"loss_fn": loss_of, **options})


@pytest.mark.parametrize(
    ("ranks", "stages", "message"),
    [
        (2, [None, None], "the schedule is for 2 ranks and the group has 1"),
        (1, [None], "stage 0 belongs on rank 0, and this is rank 0: give a module, got NoneType"),
        (1, [nn.Identity(), nn.Identity()], "there are 2 stages and the schedule has 1"),
    ],
)
def test_stages_and_ranks_that_do_not_fit_are_refused_when_the_pipeline_is_made(ranks, stages, message):
    with pytest.raises(ap.PipelineError, match=message):
        ap.Pipeline(stages, ap.schedule("gpipe", ranks=ranks, microbatches=2), loss_fn=loss_of)


def test_two_copies_of_a_stage_are_refused():
    schedule = ap.schedule("dualpipe", ranks=2, microbatches=4)
    with pytest.raises(ap.PipelineError, match="not a chain"):
        ap.Pipeline([None] * schedule.placement.stages, schedule, loss_fn=loss_of)


def test_a_loss_that_is_no_function_and_a_timeout_of_nothing_are_refused():
    with pytest.raises(ap.PipelineError, match="loss_fn is called with output and target"):
        one(loss_fn="mse")
    with pytest.raises(ap.PipelineError, match="more than none"):
        one(timeout=timedelta(0))


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_step_without_gradients_is_refused(mode):
    with getattr(torch, mode)(), pytest.raises(ap.PipelineError, match=f"inside torch.{mode}: call it outside"):
        one().step(torch.ones(4, 6), target=torch.ones(4, 6))


def test_a_stage_on_two_devices_is_refused():
    pipe = one()
    stage = Block(6, 0)
    stage.second.to("meta")
    with pytest.raises(ap.PipelineError, match="second.weight is on the meta device"):
        ap.Pipeline([stage], pipe.schedule, loss_fn=loss_of).step(torch.ones(4, 6), target=torch.ones(4, 6))


def test_an_operation_that_nobody_registered_is_refused():
    spec = ap.schedule_spec("gpipe", ranks=1, microbatches=1)
    schedule = dataclasses.replace(spec, operations=(ap.Operation("OFFLOAD", after="F"),)).build()
    with pytest.raises(ap.PipelineError, match="inserts OFFLOAD: say what it does with pipe.register"):
        ap.Pipeline([Block(6, 0)], schedule, loss_fn=loss_of).step(torch.ones(1, 6), target=torch.ones(1, 6))


def test_operations_run_where_the_schedule_has_them_and_can_be_registered_anew_between_steps():
    spec = ap.schedule_spec("gpipe", ranks=1, microbatches=2)
    schedule = dataclasses.replace(spec, operations=(ap.Operation("OFFLOAD", after="F"),)).build()
    pipe = ap.Pipeline([Block(6, 0)], schedule, loss_fn=loss_of)
    seen = []
    for name in ("first", "second"):
        pipe.register("OFFLOAD", lambda stage, microbatch, name=name: seen.append((name, stage, microbatch)))
        pipe.step(torch.ones(2, 6), target=torch.ones(2, 6))
    assert seen == [("first", 0, 0), ("first", 0, 1), ("second", 0, 0), ("second", 0, 1)]
    with pytest.raises(ap.PipelineError, match="no operation 'ONLOAD' on this rank; it has \\['OFFLOAD'\\]"):
        pipe.register("ONLOAD", lambda stage, microbatch: None)


def test_nano_batches_in_a_schedule_are_refused():
    schedule = ap.Schedule.of(ap.placement.linear(1), 1, [["0F0/2", "0B0"]])
    with pytest.raises(ap.PipelineError, match="0F0/2 runs as 2 nano-batches"):
        ap.Pipeline([Block(6, 0)], schedule, loss_fn=loss_of)


def test_a_target_counts_as_forgotten_only_where_the_loss_is_what_fails():
    pipe = one()
    with pytest.raises(ap.PipelineError, match="step was called without target"):
        pipe.step(torch.ones(4, 6))
    with pytest.raises(ap.PipelineError) as caught:
        pipe.step(torch.ones(4, 5))
    assert "without target" not in str(caught.value)


def test_a_single_rank_that_failed_can_be_called_again():
    pipe = one()
    x, y = torch.ones(4, 6), torch.zeros(4, 6)
    with pytest.raises(ap.PipelineError, match="microbatches"):
        pipe.step(torch.ones(3, 6), target=y)
    assert len(pipe.step(x, target=y)) == 2
