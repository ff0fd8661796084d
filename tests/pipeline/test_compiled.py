"""``Pipeline(compile="inductor")`` on real ranks, and what is refused."""

import os
import shutil

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.errors import PipelineError
from tests.pipeline.cases import check_cases

COMPILER = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What one case has compiled is there for the others."""
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "case",
    [
        "every_order_of_compiled_graphs_has_the_same_bits_and_the_plans_communication",
        "compiled_graphs_run_without_a_token_and_in_split_backwards",
        "nano_batched_lanes_run_compiled_and_new_counts_compile_nothing_again",
        "what_a_backward_computes_again_and_evaluation_run_compiled",
        "an_attached_schedule_runs_compiled",
        "ranks_have_to_compile_alike",
    ],
)
def test_a_case_holds(case, cache, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)
    check_cases("compiled_cases", 2, [case])


# With all graphs in stretches, but without the compiler: what stages, lanes and schedules do to graphs is the same.
STRETCHED = {
    ("nano_cases", 1): ("warm_up_and_cool_down_in_nano_batches_train_as_the_unsplit_model",),
    ("boundary_cases", 1): (
        "gradients_are_those_of_the_unsplit_model_whatever_is_computed_again",
        "evaluation_computes_nothing_again",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ranks"), STRETCHED)
def test_some_cases_hold_in_stretches(program, ranks):
    check_cases("stretched", ranks, [program, *STRETCHED[program, ranks]])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        *(("nano_cases", 2), ("boundary_cases", 2), ("attach_cases", 2), ("shape_cases", 2), ("state_cases", 2)),
        *(("sharded_cases", 2), ("parallel_cases", 2), ("expert_cases", 4)),
    ],
)
def test_every_case_holds_in_stretches(program, ranks):
    check_cases("stretched", ranks, [program])


def test_other_ways_to_compile_are_refused_by_name():
    schedule = ap.schedule("gpipe", ranks=1, microbatches=2)
    with pytest.raises(
        PipelineError, match="^compile='cudagraphs': give \"inductor\", which compiles what lies between"
    ):
        ap.Pipeline([nn.Linear(4, 2)], schedule, loss_fn=nn.MSELoss(), compile="cudagraphs")


def test_a_pipeline_with_nothing_to_fuse_compiles_nothing_and_says_so():
    schedule = ap.schedule("gpipe", ranks=1, microbatches=2)
    pipe = ap.Pipeline([nn.Linear(4, 2)], schedule, compile="inductor")
    assert pipe.compile_report is None
    assert len(pipe.eval(torch.ones(6, 4))) == 2
    pipe = ap.Pipeline([nn.Linear(4, 2)], schedule, loss_fn=lambda output, _: output.sum(), compile="inductor")
    pipe.step(torch.ones(6, 4), target=torch.ones(6))
    assert pipe.compile_report.compiled == ()
    assert "a library call, or less than two operations to fuse" in pipe.compile_report.reasons
