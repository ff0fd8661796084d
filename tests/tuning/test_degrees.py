"""Degrees: what is possible on a cluster, what is searched, and how steps of different degrees compare."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import annopipe as ap
from annopipe.costs import Hardware, Link
from annopipe.tuning.degrees import Degrees
from annopipe.tuning.finishing import reduced_by_rank
from annopipe.tuning.layers import Piece, Pieces
from annopipe.tuning.model_workload import ModelWorkload
from annopipe.tuning.priced import Parameters, PricedLayer, PricedModel

HARDWARE = Hardware(
    name="toy",
    peak_flops={"bfloat16": 1e12},
    memory_bandwidth=1e12,
    inside=Link(1e10, fraction=1.0, hop_s=0.0),
    between=Link(1e9, fraction=1.0, hop_s=0.0),
    ranks_per_node=4,
    collective_start_s=0.0,
)
CLUSTER = ap.Cluster(8, HARDWARE, 200e6)


def price(hardware: Hardware, expert: int, sequences: int) -> PricedModel:
    """Eight layers of a millisecond a sequence, with something fixed; the more ranks share experts, the longer."""
    own = (1e-3 * sequences + 2e-4) * (1.0 + 0.01 * expert)
    forward, backward = (Piece(own),), (Piece(own, weight=own),)
    del hardware
    layer = PricedLayer(
        Pieces(forward, backward),
        1e6 * sequences,
        1e6 * sequences,
        None,
        Parameters(100_000, 200_000),
        Parameters(8_000_000 // expert, 16_000_000 // expert),
        1e4 * sequences,
    )
    return PricedModel((layer,) * 8)


MODEL = ModelWorkload(price, batch=16, experts=8, name="toy")


def test_possible_degrees_use_all_devices_and_share_the_batch() -> None:
    found = MODEL.degrees(CLUSTER)
    assert Degrees(2, 4, 4, 1) in found
    for degrees in found:
        assert degrees.devices == 8
        assert degrees.data % degrees.expert == 0
        assert degrees.microbatches(16) * degrees.microbatch_size * degrees.data == 16
    assert {degrees.expert for degrees in MODEL.degrees(CLUSTER, ranks=2)} == {1, 2, 4}
    assert {degrees.microbatch_size for degrees in MODEL.degrees(CLUSTER, microbatch_size=2)} == {2}


def test_the_best_degrees_are_found_and_fit() -> None:
    found = ap.tune(MODEL, CLUSTER, effort=15_000, workers=1)
    best = found[0]
    assert best.degrees is not None
    assert best.work.ranks == best.degrees.ranks
    assert max(best.timeline.peaks) <= CLUSTER.memory
    steps = [each.step for each in found if not each.trial.rules.library]
    assert steps == sorted(steps)
    assert best.step >= best.timeline.makespan >= best.bound - 1e-12
    for degrees in (Degrees(8, 1), Degrees(4, 2, 2), Degrees(2, 4, 4)):
        try:
            work = MODEL.at(CLUSTER, degrees)
        except ap.CostError:
            continue
        assert best.step <= ap.tune(work, effort=5_000, workers=1)[0].step * 1.02


def test_a_search_over_degrees_finds_the_same_for_a_seed() -> None:
    one, other = (ap.tune(MODEL, CLUSTER, data=4, effort=5_000, workers=workers, seed=3)[0] for workers in (1, 2))
    assert (one.degrees, one.trial, one.step) == (other.degrees, other.trial, other.step)


def test_what_is_given_is_kept_and_progress_is_told() -> None:
    told: list[str] = []
    found = ap.tune(
        MODEL,
        CLUSTER,
        ranks=4,
        expert=2,
        effort=5_000,
        workers=1,
        memory=1e9,
        report=lambda progress: told.append(progress.part),
    )
    assert {(each.degrees.ranks, each.degrees.expert) for each in found if each.degrees} == {(4, 2)}
    assert any(part.startswith("pricing PP 4") for part in told)


def test_gradients_are_summed_at_the_end_of_the_step() -> None:
    work = MODEL.at(CLUSTER, Degrees(2, 4, 1), memory=1e12)
    best = ap.tune(work, effort=5_000, workers=1)[0]
    reduced = reduced_by_rank(work, best.trial.layout)
    # 4 bytes of each gradient scattered, 2 of each parameter gathered, three quarters of both over the link in a node
    assert max(reduced) >= 4 * 8_100_000 * 6 * 0.75 / 1e10
    assert best.step >= best.timeline.makespan
    assert best.step <= best.timeline.makespan + max(reduced) + 1e-12


def test_a_config_says_the_degrees(tmp_path: Path) -> None:
    best = ap.tune(MODEL, CLUSTER, ranks=2, effort=5_000, workers=1, memory=1e9)[0]
    best.save(tmp_path / "run.toml")
    assert ap.RunConfig.load(tmp_path / "run.toml").degrees == best.degrees
    text = (tmp_path / "run.toml").read_text(encoding="utf-8")
    (tmp_path / "run.toml").write_text(text.replace("expert =", "experts ="), encoding="utf-8")
    with pytest.raises(ap.PipelineError, match="degrees has no field 'experts'"):
        ap.RunConfig.load(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text(text.replace("[degrees]\nranks = 2", "[degrees]"), encoding="utf-8")
    with pytest.raises(ap.PipelineError, match="degrees has no ranks: give it"):
        ap.RunConfig.load(tmp_path / "run.toml")


def test_memory_that_no_degrees_keep_to_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ap.CostError, match=r"toy on 8 devices: no degrees fit; PP 1 x DP 8, size 1: .*too little for any"
    ):
        ap.tune(MODEL, CLUSTER, memory=1e6, effort=1_000, workers=1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ranks": 3}, "ranks=3 is not possible; possible are 1, 2, 4, 8"),
        ({"ranks": 2, "expert": 8}, "expert=8 is not possible; possible are 1, 2, 4"),
        ({"microbatch_size": 64}, "a batch of 16 sequences is not shared equally on 8 devices by any degrees"),
    ],
)
def test_degrees_that_cannot_be_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        ap.tune(MODEL, CLUSTER, **more)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    work = MODEL.at(CLUSTER, Degrees(2, 4, 4), memory=1e9)
    with pytest.raises(ap.CostError, match="toy has no degrees yet: give the annopipe.Cluster"):
        ap.tune(MODEL)
    with pytest.raises(ap.CostError, match="has its degrees already: leave out ranks"):
        ap.tune(work, ranks=2)
    with pytest.raises(ap.CostError, match="2 ranks do not divide 7 devices"):
        ap.tune(work, dataclasses.replace(CLUSTER, devices=7, hardware=dataclasses.replace(HARDWARE, ranks_per_node=7)))
    with pytest.raises(ap.CostError, match="ranks=0: give a whole number"):
        Degrees(0)


def test_a_table_takes_the_memory_of_a_cluster_when_it_has_none() -> None:
    layers = (ap.Layer(1.0, 1.0, 1.0, activation=50e6),) * 4
    work = ap.Workload(layers, ranks=2, microbatches=8)
    assert max(ap.tune(work, CLUSTER, effort=2_000, workers=1)[0].timeline.peaks) <= 200e6
    roomy = dataclasses.replace(work, memory=1e9)
    assert ap.tune(roomy, CLUSTER, effort=2_000, workers=1)[0].work.memory == 1e9


def test_a_model_with_fewer_layers_than_ranks_is_refused_for_that() -> None:
    cluster = ap.Cluster(16, HARDWARE, 200e6)
    with pytest.raises(
        ap.CostError, match="no degrees fit; PP 16 x DP 1.*: 8 layers are fewer than 16 ranks: take fewer"
    ):
        ap.tune(MODEL, cluster, ranks=16, effort=200, workers=1)


@pytest.mark.parametrize("options", [{"microbatch_size": 0}, {"ranks": "2"}, {"data": True}], ids=str)
def test_degrees_that_are_no_counts_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ap.CostError, match="give a whole number, 1 or more, or None to search it"):
        ap.tune(MODEL, CLUSTER, effort=200, workers=1, **options)
