"""``Pipeline(cuda_graphs=True)``: cases of other programs with a recorder for processors, and what is refused."""

import pytest
from torch import nn

import annopipe as ap
from annopipe.capturing import graphs
from annopipe.capturing.worth import Weight
from annopipe.errors import PipelineError
from tests.capturing.emulated import EmulatedRecorder
from tests.pipeline.cases import check_cases
from tests.pipeline.trial import Trial, batches

SOME = {
    ("nano_cases", 1): ("warm_up_and_cool_down_in_nano_batches_train_as_the_unsplit_model",),
    ("boundary_cases", 1): ("gradients_are_those_of_the_unsplit_model_whatever_is_computed_again",),
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ranks"), SOME)
def test_some_cases_hold_with_captured_runs(program, ranks):
    check_cases("captured", ranks, [program, *SOME[program, ranks]])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        *(("nano_cases", 1), ("boundary_cases", 1), ("attach_cases", 2), ("parallel_cases", 2)),
        ("expert_cases", 4),
    ],
)
def test_every_case_holds_with_captured_runs(program, ranks):
    check_cases("captured", ranks, [program])


class Chain(nn.Module):
    """Enough operations to be worth capturing."""

    def __init__(self, *_):
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(nn.Linear(6, 6).weight.detach().double()))

    def forward(self, x):
        for _ in range(4):
            x = (x @ self.weight).tanh().sin().exp() * 0.1
        return x


def test_with_several_microbatches_in_flight_a_run_is_recorded_once_and_parameters_may_change(monkeypatch):
    made = []

    class Noted(EmulatedRecorder):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(graphs, "CudaRecorder", Noted)
    trial = Trial(Chain, "zbv", 4, cuda_graphs=True, policy="sequential")
    trial.both(batches(4))
    (recorder,) = made
    runs = trial.pipe.capture_report.captured
    assert recorder.recorded == len(runs) > 3
    assert "launched one by one" in str(trial.pipe.capture_report)
    for parameters in (trial.parameters(), [*trial.pipe.parameters()]):
        for parameter in parameters:
            parameter.data = parameter.detach() * 0.9  # another memory
    trial.both(batches(4, seed=3))
    assert len(runs) < (again := recorder.recorded) < 2 * len(runs)  # all that takes a parameter; some of W does not
    trial.both(batches(4, seed=4))
    assert recorder.recorded == again
    assert recorder.replayed > 2 * again


def test_gradients_that_wait_for_their_turn_are_copied(monkeypatch):
    monkeypatch.setattr(graphs, "CudaRecorder", EmulatedRecorder)
    monkeypatch.setattr(Weight, "gain_s", 1.0)
    Trial(Chain, "looped-bfs", 4, cuda_graphs=True, fixed_sums=True).both(batches(4))


def test_stages_that_are_on_no_gpu_are_refused_by_name():
    schedule = ap.schedule("gpipe", ranks=1, microbatches=2)
    with pytest.raises(PipelineError, match="cuda_graphs=True, and this rank's stages have tensors on cpu: move them"):
        ap.Pipeline([nn.Linear(4, 2)], schedule, cuda_graphs=True)
    with pytest.raises(PipelineError, match="cuda_graphs='yes': give True or False"):
        ap.Pipeline([nn.Linear(4, 2)], schedule, cuda_graphs="yes")
