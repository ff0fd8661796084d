"""Real models on clusters: what a workload has at some degrees, and what is refused."""

import dataclasses
import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.tuning.priced import Parameters
from annopipe.workloads.shipped import MODELS, experts_model, model_named
from tests.workloads.examples import CONFIG, SPEC, machine

CLUSTER = ap.Cluster(8, machine(ranks_per_node=4), 1e9, "eight")
LENGTH = 64


@functools.cache
def small() -> ap.ModelWorkload:
    return ap.Workload.from_model(SPEC, batch=16, sequence=LENGTH, recompute=None)


def test_a_model_at_fixed_degrees_is_one_pipeline() -> None:
    work = small().in_degrees(CLUSTER, 2, expert=4)
    assert (work.ranks, work.microbatches, work.memory) == (2, 4, 1e9)
    embed, dense, *experts, head = work.layers
    assert len(experts) == 3
    assert experts[0] == experts[1]
    assert embed.comm == dense.comm == head.comm == 0.0
    assert experts[0].comm > 0.0
    assert embed.I == 0.0
    assert head.message == pytest.approx(4 / 5e9)
    assert dense.message == pytest.approx(2 * LENGTH * CONFIG.hidden / 5e9)  # over the link between nodes
    assert not dist.is_initialized()


def test_parameters_follow_the_degrees() -> None:
    """Experts are divided by the ranks that share them; optimizer state by the ranks that have the same."""
    one, four = (small().price(CLUSTER.hardware, ranks, 1).layers[2] for ranks in (1, 4))
    assert one.experts.elements == 4 * four.experts.elements > 0
    assert one.shared == four.shared
    degrees, state = ap.Degrees(2, data=4, expert=4), ap.TrainingState()
    assert four.held(degrees, state) == pytest.approx(
        four.shared.elements * (2 + 4 + 12 / 4) + four.experts.elements * (2 + 4 + 12), rel=0.01
    )
    whole = ap.TrainingState(sharded=False)
    assert four.shared.held(whole, 4) == pytest.approx(four.shared.elements * 18.0, rel=0.01)


def test_gradients_are_reduced_by_the_ranks_that_have_the_same() -> None:
    cluster, state = CLUSTER, ap.TrainingState(gradient_bytes=4.0)
    mine = Parameters(elements=1000, size_bytes=2000)
    assert mine.reduced_s(state, cluster, 1, 1) == 0.0
    moved = (4000 + 2000) * 3 / 4
    assert mine.reduced_s(state, cluster, 4, 1) == pytest.approx(moved / cluster.hardware.inside.attained)
    assert mine.reduced_s(ap.TrainingState(sharded=False), cluster, 4, 1) > 0.0


def test_somebodys_own_layers_work() -> None:
    layers = [nn.Linear(16, 16, dtype=torch.bfloat16) for _ in range(4)]
    model = ap.ModelLayers(layers, (torch.ones(2, 16, dtype=torch.bfloat16),), sequences=2, name="own")
    work = ap.Workload.from_model(model, CLUSTER, batch=16, ranks=2)
    assert (work.name, len(work.layers), work.microbatches) == ("own", 4, 2)
    assert ap.tune(work, effort=2_000, workers=1)[0].timeline.makespan > 0.0


def test_every_named_model_makes_its_layers() -> None:
    assert {"deepseek-v3-671b", "deepseek-v3-16b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-5b-32k"} <= set(MODELS)
    assert {"gpt-5b-512k", "two-tower-l14"} <= set(MODELS)
    with pytest.raises(ap.CostError, match="there is no model 'gpt-6': the names are deepseek-v3-671b"):
        model_named("gpt-6")


def test_a_layer_of_the_largest_model_is_priced_at_its_full_size() -> None:
    config = dataclasses.replace(DeepSeekV3Config.v3_671b(), layers=1, dense_layers=0)
    spec = experts_model("one", config, DeepSeekV3Stage)
    cluster = ap.Cluster(64, ap.costs.machine("h100"), 80e9)
    work = ap.Workload.from_model(spec, cluster, batch=64, ranks=1, expert=64, memory=1e12, recompute=None)
    layer = work.layers[1]
    assert 0.9 < layer.comm / 0.01832 < 1.1  # 4096 tokens to 8 experts each, 7168 values, there and back, at 45 GB/s
    assert 2.0e9 < layer.activation < 4.0e9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ranks": 3}, "ranks=3 is not possible; possible are 1, 2, 4, 8"),
        ({"ranks": 2, "data": 2}, r"2 ranks x 2 pipelines are 4; give data=4"),
        ({"ranks": 2, "expert": 3}, "expert=3 does not divide data=4"),
        (
            {"ranks": 1, "expert": 8, "microbatch_size": 4},
            "a batch of 16 sequences is not shared equally by 8 pipelines",
        ),
        ({"ranks": 2, "memory": 1e3}, "memory=1000 is too little for any schedule"),
    ],
)
def test_degrees_that_cannot_be_are_refused(more: dict[str, int], message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        small().in_degrees(CLUSTER, **more)  # type: ignore[arg-type]


def test_experts_that_do_not_fit_are_refused() -> None:
    cluster = dataclasses.replace(CLUSTER, devices=16)
    with pytest.raises(ap.CostError, match="expert=16 ranks cannot share 8 experts equally; possible are 1, 2, 4, 8"):
        small().in_degrees(cluster, 1, expert=16)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ap.CostError, match="data is given and ranks is not"):
        ap.Workload.from_model(SPEC, batch=16, data=2)  # type: ignore[call-overload]
    with pytest.raises(ap.CostError, match="ranks=2 are given and no cluster"):
        ap.Workload.from_model(SPEC, batch=16, ranks=2)  # type: ignore[call-overload]
    with pytest.raises(ap.CostError, match="model is 5: give a name"):
        ap.Workload.from_model(5, batch=16)
    with pytest.raises(ap.CostError, match="batch=0: give the number of sequences"):
        ap.Workload.from_model(SPEC, batch=0)
    with pytest.raises(ap.CostError, match="sequence=0: give the number of tokens"):
        ap.Workload.from_model(SPEC, batch=16, sequence=0)
    with pytest.raises(ap.CostError, match="optimizer_bytes=-1"):
        ap.TrainingState(optimizer_bytes=-1)
