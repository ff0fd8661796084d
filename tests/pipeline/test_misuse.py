"""Mistakes in making and calling a pipeline: found before anything is sent, with what happened and what to do."""

import dataclasses
import json
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import annopipe as ap
from annopipe.pipeline.checks import check_modules
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
    "no target": "step was called without target on the rank of the last stage, and loss_fn takes one",
    "uncut": "x has shape (3, 6), and its dimension 0 cannot be cut into 2 equal microbatches",
    "cut": "stage 1 on rank 1: CaptureError: cannot trace Wide",
    "lengths": "target is 2 long on rank 1, and x has a batch of 4 on rank 0",
    "dims": "different arguments, batch_dims: [] and [('x', 0)]",
    "buckets": "different arguments, bucket_bytes: None and 64",
    "no grad": "step differentiates, and is called inside torch.no_grad",
    "meta": ".weight is on the meta device and has no values",
    "tied": "different arguments, the tied parameters: [] and [('1.first.bias', '0.first.bias')]",
    "scale": "the scale of loss is '1': give a number, or a tensor without dimensions",
    "dtype": "stage 1 on rank 1: CaptureError: cannot trace Block: aten.addmm.default in Block.first",
    "constant": "stage 0 on rank 0: PipelineError: stage 0 returns something that its next stage cannot be told (",
    "crossed": "rank 0 and rank 1 have different arguments, the pipeline: number ",
    "clip and step": "rank 0 and rank 1 have different arguments, call: step and clip_grad_norm_",
    "clip": "different arguments, options: max_norm=1.0, norm_type=2.0 and max_norm=2.0, norm_type=2.0",
    "policy name": "no overlap policy 'fastest'; there are sequential",
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


@pytest.mark.parametrize("name", ["first", "second", "first again", "replaced", "fine"])
def test_between_and_after_mistakes_the_same_groups_run_steps(found, name):
    assert [found[rank][name] for rank in range(2)] == ["", ""]


@pytest.mark.parametrize("name", ["step", "clip_grad_norm_"])
def test_a_rank_that_calls_alone_is_told_so_within_the_timeout(found, name):
    said = found[0][f"{name} alone"]
    assert f"waited for all ranks to call {name}, and that failed within 3 s" in said
    assert "did not make the same call" in said
    assert "no word from rank 1" in said


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


def test_several_first_stages_want_their_inputs_by_keyword():
    schedule = ap.ScheduleSpec(ap.placement.towers([0], [0], top=[0]), 1).build()
    pipe = ap.Pipeline([Block(6, 0), Block(6, 1), Block(6, 2)], schedule, loss_fn=loss_of)
    with pytest.raises(ap.PipelineError, match="several stages take the inputs of a step, 0 and 1: give them by key"):
        pipe.step(torch.ones(1, 6), target=torch.ones(1, 6))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schedule": "1f1b"}, "the schedule is a str: give a Schedule, such as ap.schedule"),
        ({"schedule": ap.schedule_spec("gpipe", ranks=1, microbatches=2)}, r"a ScheduleSpec: .* the spec's build\(\)"),
        ({"stages": nn.Identity()}, "stages is a Identity: give a list of modules"),
        ({"timeout": 60}, "timeout=60: give a datetime.timedelta"),
        ({"batch_dims": 0}, "batch_dims is a int: give a dictionary"),
        ({"tied": ["1.weight"]}, "tied is a list: give a dictionary"),
    ],
)
def test_arguments_of_another_kind_are_refused_when_the_pipeline_is_made(changed, message):
    arguments = {"stages": [nn.Identity()], "schedule": ap.schedule("gpipe", ranks=1, microbatches=2), **changed}
    with pytest.raises(ap.PipelineError, match=message):
        ap.Pipeline(**arguments)


@pytest.mark.parametrize("scale", ["1", None, [1.0, 1.0], torch.ones(2), torch.tensor(1j)])
def test_a_loss_scale_that_is_no_number_is_refused_before_anything_runs(scale):
    pipe = one()
    with pytest.raises(ap.PipelineError, match="^the scale of loss is .*: give a number"):
        pipe.step(torch.ones(4, 6), target=torch.ones(4, 6), loss_scale=scale)
    assert all(parameter.grad is None for parameter in pipe.parameters())


def test_a_step_under_a_schedule_without_backwards_is_refused():
    pipe = one(name="forward-only")
    with pytest.raises(ap.PipelineError, match="no backward, so that step would compute no gradient: call eval"):
        pipe.step(torch.ones(4, 6), target=torch.ones(4, 6))
    assert len(pipe.eval(torch.ones(4, 6))) == 2


def test_a_schedule_for_more_ranks_than_there_are_is_refused():
    schedule = ap.schedule("dualpipe", ranks=2, microbatches=4)
    with pytest.raises(ap.PipelineError, match="the schedule is for 2 ranks and the group has 1"):
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


def test_stages_on_two_devices_are_refused():
    with FakeTensorMode():
        tensors = {"0.first": torch.ones(1), "1.second": torch.ones(1, device="cuda"), "1.third": torch.ones(1)}
    with pytest.raises(ap.PipelineError, match=r"several devices \(0.first on cpu, 1.second on cuda:0\): move all"):
        check_modules(tensors)
    assert check_modules({"0.first": torch.ones(1), "1.second": torch.zeros(1)}) is None


def test_a_stage_without_memory_is_refused():
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
    for _ in range(2):
        own: list[tuple[int, int | None]] = []
        seen.append(own)
        pipe.register("OFFLOAD", lambda *at, own=own: own.append(at))
        pipe.step(torch.ones(2, 6), target=torch.ones(2, 6))
    assert seen == [[(0, 0), (0, 1)], [(0, 0), (0, 1)]]
    with pytest.raises(ap.PipelineError, match="no operation 'ONLOAD' on this rank; it has \\['OFFLOAD'\\]"):
        pipe.register("ONLOAD", lambda stage, microbatch: None)


def test_a_target_counts_as_forgotten_only_where_the_loss_is_what_fails():
    pipe = one()
    with pytest.raises(
        ap.PipelineError, match="step was called without target on the rank of the last stage, and loss_fn takes one"
    ):
        pipe.step(torch.ones(4, 6))
    with pytest.raises(ap.PipelineError) as caught:
        pipe.step(torch.ones(4, 5))
    assert "without target" not in str(caught.value)


def test_a_call_inside_a_call_is_refused():
    spec = ap.schedule_spec("gpipe", ranks=1, microbatches=1)
    schedule = dataclasses.replace(spec, operations=(ap.Operation("OFFLOAD", after="F"),)).build()
    pipe = ap.Pipeline([Block(6, 0)], schedule, loss_fn=loss_of)
    x = torch.ones(1, 6)
    pipe.register("OFFLOAD", lambda *_: pipe.eval(x))
    with pytest.raises(ap.PipelineError, match="eval was called while step of the same pipeline runs"):
        pipe.step(x, target=x)
    pipe.register("OFFLOAD", lambda *_: None)
    assert len(pipe.step(x, target=x)) == 1


def test_a_single_rank_that_failed_can_be_called_again():
    pipe = one()
    x, y = torch.ones(4, 6), torch.zeros(4, 6)
    with pytest.raises(ap.PipelineError, match="microbatches"):
        pipe.step(torch.ones(3, 6), target=y)
    assert len(pipe.step(x, target=y)) == 2
