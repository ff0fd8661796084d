"""``Pipeline.from_config``: what a saved config says is what runs, and what it cannot say is asked for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import annopipe as ap

LAYER = ap.Layer(F=1.0, I=1.0, W=1.0, activation=1.0)


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> Path:
    best = ap.tune(ap.Workload((LAYER,) * 4, ranks=1, microbatches=2), effort=1_000, workers=1)[0]
    best.save(tmp_path / "run.toml")
    return tmp_path / "run.toml"


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3, dtype=torch.float64) for _ in range(4)))


def stages_of(path: Path, layers: nn.Sequential) -> list[nn.Module]:
    return [layers[start:end] for start, end in ap.RunConfig.load(path).layers]


def test_a_config_trains_as_the_whole_model_does(config: Path) -> None:
    x, target = torch.randn(4, 3, dtype=torch.float64), torch.zeros(4, 3, dtype=torch.float64)
    piped, whole = model(), model()
    pipe = ap.Pipeline.from_config(config, stages_of(config, piped), loss_fn=nn.functional.mse_loss)
    assert pipe.schedule.microbatches == 2
    pipe.step(x, target=target)
    for part, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
        nn.functional.mse_loss(whole(part), wanted).backward()
    for mine, theirs in zip(piped.parameters(), whole.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_arguments_go_before_what_the_config_says(config: Path) -> None:
    with pytest.raises(ap.OrderError, match="no overlap policy 'police'"):
        ap.Pipeline.from_config(config, stages_of(config, model()), policy="police")


def test_layers_that_are_computed_again_need_to_be_said_how(config: Path) -> None:
    loaded = ap.RunConfig.load(config)
    replace(loaded, recomputed=(1,) * len(loaded.layers)).save(config)
    with pytest.raises(ap.PipelineError, match=r"stage 0 computes 1 of its layers again: say how with recompute=\{0: "):
        ap.Pipeline.from_config(config, stages_of(config, model()))
    assert ap.Pipeline.from_config(config, stages_of(config, model()), recompute=None).modules
