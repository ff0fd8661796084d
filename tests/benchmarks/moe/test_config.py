"""Configurations of the MoE job: the shipped ones, and what is refused before anything runs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import annopipe as ap
from annopipe.scheduling.library import schedule, schedules
from annopipe.toml_files import parse_toml
from benchmarks.moe.choosing import chosen_configs
from benchmarks.moe.config import SHIPPED, Config
from benchmarks.moe.grid import grid
from benchmarks.moe.variant import EAGER, PAIRED, REORDERING, SEQUENTIAL, Variant

SIMULATED: dict[str, Any] = {
    "kind": "simulated",
    "model": {"name": "mixtral-8x7b"},
    "cluster": {"machine": "h100", "memory": 80e9},
}


@pytest.mark.parametrize("name", ["quick", *SHIPPED])
def test_a_shipped_configuration_is_whole(name: str) -> None:
    config = Config.named(name)
    assert grid(config).variants
    if config.kind == "simulated":
        assert config.cluster_of().devices == config.ranks
    else:
        assert config.case("loopback").ranks == config.ranks


def test_every_file_is_shipped_by_its_name() -> None:
    folder = Path(__file__).parents[3] / "benchmarks" / "moe" / "configs"
    assert {path.stem for path in folder.glob("*.toml")} == {"quick", *SHIPPED}


def test_the_schedules_with_pairs_are_those_of_the_library() -> None:
    made = {name: schedule(name, 4, 8) for name in schedules() if name != "distmm-pipe"}
    paired = [name for name, found in made.items() if any(action.parts for row in found.ranks for action in row)]
    assert tuple(paired) == PAIRED


def test_the_policies_are_those_that_there_are() -> None:
    assert {SEQUENTIAL, *REORDERING} == set(ap.policies())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipelines": 2}, "configuration mine has no field 'pipelines'; it has kind, pp, ep"),
        ({"kind": "guessed"}, "kind is 'guessed': give paced, real or simulated"),
        ({"pp": "2"}, "pp is '2': give a whole number"),
        ({"pp": True}, "pp is True: give a whole number"),
        ({"dp": 0}, "dp=0: give 1 or more"),
        ({"attached": 1}, "attached is 1: give true or false"),
        ({"schedules": "zbv"}, "schedules is 'zbv': give a list"),
        ({"schedules": [["zbv"]]}, "an entry of schedules is ['zbv']: give a text"),
        ({"schedules": [1]}, "an entry of schedules is 1: give a text"),
        ({"schedules": ["zbv", "zbv"]}, "schedules names something twice: zbv, zbv"),
        ({"schedules": ["zvb"]}, "there is no schedule 'zvb'; did you mean"),
        ({"schedules": ["ScheduleGPipe"]}, "'ScheduleGPipe' is another name of gpipe: give that"),
        ({"schedules": ["forward-only"]}, "forward-only does not train a chain of layers"),
        ({"schedules": ["dualpipe"]}, "dualpipe has two copies of the model, which only simulated ones have here"),
        ({"schedules": ["wave"]}, "wave has more than two stages on a rank, which only simulated ones have"),
        ({"schedules": [], "eager": []}, "there is nothing to run"),
        ({"eager": ["zb-h1"]}, "the eager runtime has no 'zb-h1' here; it has gpipe"),
        ({"microbatches": 3}, "PyTorch's DualPipeV needs 4 microbatches or more"),
        ({"microbatches": 9, "pp": 2}, "PyTorch's interleaved 1F1B needs microbatches in 4 equal turns"),
        ({"attached": True, "eager": []}, "there is no eager schedule to attach to"),
        ({"policies": ["quickest"]}, "there is no 'quickest': sequential, alternate"),
        ({"policies": []}, "policies is empty: give one or more"),
        ({"nano_batches": [0]}, "nano_batches and skew are 1 or more"),
        ({"nano_batches": [1, 2], "policies": ["sequential"]}, "lanes gain where they are reordered"),
        ({"nano_batched": ["zbv"]}, "nano_batched: 'zbv' is not among the schedules"),
        ({"skew": [1.5]}, "even routing, 1.0, is what the others are compared with"),
        ({"skew": ["much"]}, "an entry of skew is 'much': give a number, above 0"),
        ({"model": {"depth": 3}}, "[model] of kind paced has no field 'depth'; it has layers"),
        ({"model": {"layers": 3}}, "layers=3: give an even number"),
        ({"model": {"ratio": 0}}, "model.ratio is 0: give a number, above 0"),
        ({"model": 3}, "model is 3: give a table, [model]"),
        ({"network": {"kind": "radio"}}, "network.kind is 'radio': give auto, namespaces"),
        ({"network": {"rate": "fast"}}, "fast"),
        ({"cluster": {"machine": "h100"}}, "[cluster] means nothing where kind is paced: leave it out"),
        ({"kind": "real"}, "real computation is measured with 1 pipeline rank"),
        ({**SIMULATED, "network": {"rate": "1gbit"}}, "[network] means nothing where kind is simulated"),
        ({**SIMULATED, "cluster": {}}, "[cluster] has either machine and memory, or file"),
        ({**SIMULATED, "cluster": {"machine": "h100"}}, "[cluster] has no memory"),
        ({**SIMULATED, "cluster": {"machine": "z80", "memory": 1e9}}, "there is no hardware 'z80'"),
        ({**SIMULATED, "model": {}}, "[model] has no name"),
        ({**SIMULATED, "attached": True}, "nothing runs where kind is simulated"),
        ({**SIMULATED, "policies": ["list"]}, "ordered as auto or sequential, not 'list'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.AnnopipeError) as refused:
        Config.of_table("mine", changes)
    assert message in str(refused.value)
    assert str(refused.value).startswith("configuration mine")


def test_a_cluster_may_be_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('devices = 4\nmemory = 80e9\nmachine = "h800"\n')
    mine = tmp_path / "mine.toml"
    mine.write_text('kind = "simulated"\n[model]\nname = "mixtral-8x7b"\n[cluster]\nfile = "c.toml"\n')
    assert Config.named(str(mine)).cluster_of().hardware.name == "h800"
    mine.write_text('kind = "simulated"\ndp = 2\n[model]\nname = "mixtral-8x7b"\n[cluster]\nfile = "c.toml"\n')
    with pytest.raises(ap.CostError, match="the cluster has 4 devices, and pp x ep x dp is 8"):
        Config.named(str(mine))


def test_the_configuration_in_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    config = Config.of_table("shown", parse_toml(page.partition("```toml\n")[2].partition("```")[0]))
    fields = [field.name for field in dataclasses.fields(Config) if field.name not in ("name", "cluster")]
    assert all(f"{name} = " in page or f"[{name}]" in page for name in fields)
    assert len(grid(config).variants) == 18


@pytest.mark.parametrize("name", ["huge", "../configs/tiny", "missing.toml"])
def test_a_configuration_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ap.CostError, match="there is no configuration|No such file"):
        Config.named(name)


def test_the_grid_leaves_out_what_means_nothing_and_says_so() -> None:
    lists = {"schedules": ["zbv", "dualpipev"], "eager": ["zbv"], "nano_batches": [1, 2], "skew": [1.0, 1.5]}
    found = grid(Config.of_table("mine", {**lists, "attached": True}))
    assert [str(variant) for variant in found.variants if variant.skew == 1.0] == [
        "annopipe zbv",
        "annopipe zbv, auto, /2",
        "annopipe dualpipev",
        "annopipe dualpipev, sequential",
        "annopipe dualpipev, auto",
        "annopipe dualpipev, auto, /2",
        "eager zbv",
        "attached zbv",
    ]
    assert len(found.variants) == 16
    said = "\n".join(found.left_out)
    assert "policies order pairs, of which zbv have none: one row each" in said
    assert "nano-batches: only under policies that reorder (auto)" in said
    assert "compile: paced computation takes its known time" in said


def test_graphs_that_run_apart_are_not_simulated_twice() -> None:
    config = Config.of_table("mine", {**SIMULATED, "compile": [False, True], "eager": ["dualpipev"]})
    policies = [(each.policy, each.compiled) for each in grid(config).variants if each.runtime == "annopipe"]
    assert policies == [(policy, compiled) for compiled in (False, True) for policy in ("sequential", "auto")]


NO_CHANGES: dict[str, Any] = {"configs": (), "quick": False, "schedules": (), "rounds": None, "network": None}


def test_all_shipped_ones_run_unless_one_is_named() -> None:
    assert [config.name for config in chosen_configs(NO_CHANGES)] == list(SHIPPED)
    assert {config.rounds for config in chosen_configs({**NO_CHANGES, "rounds": 9}) if config.kind == "paced"} == {9}
    quick = chosen_configs({**NO_CHANGES, "quick": True})
    assert [config.name for config in quick] == ["quick", "deepseek-v3-16b"]
    assert quick[1].skew == (1.0,)


def test_options_change_the_named_configuration() -> None:
    options = {
        **NO_CHANGES,
        "configs": ("tiny",),
        "schedules": ("zbv",),
        "skew": (1.25,),
        "rate": "1gbit",
        "ratio": 2.0,
    }
    (found,) = chosen_configs({**options, "eager": ("none",), "attached": False, "network": "emulated"})
    assert (found.schedules, found.skew, found.eager, found.nano_batched) == (("zbv",), (1.0, 1.25), (), None)
    assert (found.network, found.model) == ({"rate": "1gbit", "kind": "emulated"}, {"ratio": 2.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quick": True, "configs": ("tiny",)}, "--quick has configurations of its own"),
        ({"microbatches": 4}, "--microbatches changes a configuration: name it"),
        ({"configs": ("tiny", "tiny")}, "--config names something twice"),
        ({"configs": ("mixtral-8x7b",), "rate": "1gbit"}, "[network] means nothing where kind is simulated"),
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.AnnopipeError) as refused:
        chosen_configs({**NO_CHANGES, **options})
    assert message in str(refused.value)


def test_a_variant_survives_its_plain_form() -> None:
    for variant in grid(Config.named("tiny")).variants:
        assert Variant.from_plain(variant.plain()) == variant
    assert set(EAGER) <= set(schedules())
