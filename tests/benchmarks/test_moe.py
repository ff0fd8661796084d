"""The MoE job on real ranks: both runtimes have the same gradients; one table; plain data."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import annopipe as ap
from benchmarks.eager_names import SENDS_TO_ITSELF
from benchmarks.eager_runtime import EAGER_SCHEDULES
from benchmarks.moe.case import MoeCase, copies_to
from benchmarks.moe.command import command
from benchmarks.moe.gradients import Fingerprints, differing, fingerprints
from benchmarks.moe.model import STRETCHES, TRANSFERS, example_input, stage_module
from benchmarks.moe.nano import least_exposed_s
from benchmarks.moe.pacing import Paces
from benchmarks.moe.variant import EAGER, Variant

DUALPIPEV = Variant("annopipe", "dualpipev", "auto")
REAL = {"paced": False, "pipeline_ranks": 1}
PACES = Paces(stretch_s=2.0, transfer_s=3.0)
SMALL = """
pp = 2
microbatches = 4
rounds = 1
schedules = ["dualpipev"]
policies = ["auto"]
network = { kind = "emulated", rate = "800mbit" }
"""


@pytest.fixture
def block():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        case = MoeCase(pipeline_ranks=1, width=8)
        module = stage_module(case, 1, 0, 0.0, dist.group.WORLD)
        yield module, example_input(case)
    finally:
        dist.destroy_process_group()


def test_a_paced_block_splits_into_equal_halves_of_backward(block) -> None:
    module, x = block
    costs = ap.costs.actions(ap.trace(module, (x.requires_grad_(),)), PACES.costs)
    assert (costs.F, costs.I, costs.W) == (2 * 2.0 + 2 * 3.0, 2 * 2.0 + 2 * 3.0, 2 * 2.0)
    assert costs.F + costs.B == STRETCHES * 2.0 + TRANSFERS * 3.0
    assert costs.FB(0, 0) < costs.F + costs.B


def test_a_first_stage_computes_no_gradient_of_its_input(block) -> None:
    module, x = block
    costs = ap.costs.actions(ap.trace(module, (x,)), PACES.costs)
    assert costs.B == 2 * 3.0 + 3 * 2.0


def test_half_a_microbatch_takes_half_the_time(block) -> None:
    module, x = block
    paces = Paces(stretch_s=2.0, transfer_s=3.0, asked_s=0.5, transfer_rows=2 * len(x) * 64, latency_s=1.0)
    module[0].seconds = 0.5
    whole, half = (ap.trace(module, (part.requires_grad_(),)) for part in (x, x[:1].clone()))
    assert sum(paces.costs(whole.forward).seconds.values()) == 2 * 2.0 + 2 * 3.0
    costs = paces.costs(half.forward)
    assert sum(costs.seconds.values()) == 2 * 1.0 + 2 * (1.0 + 2.0 / 2)
    assert set(costs.latency.values()) == {1.0}


def test_the_least_that_nano_batches_expose_is_what_their_plan_exposes_in_a_block(block) -> None:
    module, x = block
    graphs = ap.trace(module, (x.requires_grad_(),))
    schedule = ap.schedule("gpipe", ranks=1, microbatches=1)
    costs = ap.costs.actions(graphs, PACES.costs)
    split = [ap.Action.parse(text) for text in ("0F0/2", "0B0/2")]
    # Half an attention leads to the first dispatch, and 4 s do not hide 6; half a combine leads to the experts.
    assert least_exposed_s(schedule, {0: graphs}, PACES.costs, 2) == sum(map(costs.exposed_of, split)) == 3.0 + 1.5


def test_results_of_a_paced_block_are_real(block) -> None:
    module, x = block
    x = x.requires_grad_()
    with torch.no_grad():
        module[0].attention.fill_(1.0)
        module[0].experts.fill_(0.5)
    torch.testing.assert_close(module(x), (x + 1.0) * 2 + 0.5)
    module(x).sum().backward()
    assert x.grad.unique().tolist() == [2.0]
    assert module[0].experts.grad.unique().tolist() == [float(len(x))]


def _run(tmp_path: Path, text: str) -> tuple[str, dict]:
    config, path = tmp_path / "small.toml", tmp_path / "out" / "result.json"
    config.write_text(text)
    result = CliRunner().invoke(command, ["--config", str(config), "--json", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output, json.loads(path.read_text())


def test_all_runtimes_run_the_same_model_and_every_row_is_measured_beside_predicted(tmp_path: Path) -> None:
    lists = 'eager = ["dualpipev"]\nattached = true\nnano_batches = [1, 2]\n'
    text, found = _run(tmp_path, lists + SMALL)
    rows = {str(Variant.from_plain(row)): row for row in found["rows"]}
    ours = ["dualpipev", "dualpipev, auto", "dualpipev, auto, /2"]
    eager = [] if SENDS_TO_ITSELF else ["eager dualpipev"]
    names = [*(f"annopipe {own}" for own in ours), *eager, "attached dualpipev, auto"]
    assert list(rows) == names
    for row in rows.values():
        assert row["measured"]["kind"] == "emulated"
        assert len(row["measured"]["seconds"]) == 1
        assert 0.0 < row["predicted"]["bound_seconds"] <= row["predicted"]["seconds"]
        assert row["why_missing"] == ""
    assert found["configs"]["small"]["found"]["gradients_differ"] == {}
    seconds = {name: row["predicted"]["seconds"] for name, row in rows.items()}
    assert seconds["annopipe dualpipev, auto, /2"] < seconds["annopipe dualpipev, auto"] < seconds["annopipe dualpipev"]
    assert all(seconds["annopipe dualpipev"] == seconds[name] for name in eager)
    assert "small: paced, PP 2 x EP 2, 4 microbatches; emulated all-to-alls, 100 MB/s" in text
    assert "gradients agree" in text
    assert found["environment"]["network"] == {"small": "emulated, 100 MB/s for each expert group"}
    _check_phases(text, found)


def _check_phases(text: str, found: dict) -> None:
    """Every phase is measured beside simulated, without and with nano-batches."""
    (entry,) = found["configs"]["small"]["found"]["nano_batches"]
    whole = Variant("annopipe", "dualpipev", "auto")
    predicted = {Variant.from_plain(row): row["predicted"]["seconds"] for row in found["rows"]}
    assert [phase["phase"] for phase in entry["phases"]] == ["warm-up", "steady state", "cool-down"]
    for when, variant in (("before", whole), ("after", whole.without(nano_batches=2))):
        for rank in range(2):
            own = [phase[when]["by_rank"][rank] for phase in entry["phases"]]
            assert sum(phase["end"] - phase["start"] for phase in own) == pytest.approx(predicted[variant])
            assert all(phase["measured_s"] > 0 for phase in own)
    exposed = [sum(phase[when]["exposed_s"] for phase in entry["phases"]) for when in ("before", "after")]
    assert exposed[1] < exposed[0]
    assert 0.0 < entry["least_exposed_s"] < exposed[0]
    assert f"annopipe dualpipev, auto, /2, beside annopipe dualpipev, auto: {entry['reason']}" in text
    assert "microbatches that run alone, as nano-batches, can hide at most" in text


@pytest.mark.slow
def test_real_computation_is_measured_and_predicted_too(tmp_path: Path) -> None:
    sizes = "[model]\nrows = 256\nwidth = 256\ntop_k = 2\n"
    lists = 'kind = "real"\npp = 1\nmicrobatches = 4\nrounds = 1\neager = ["dualpipev"]\npolicies = ["auto"]\n'
    text, found = _run(tmp_path, lists + 'network = { kind = "loopback" }\n' + sizes)
    assert found["configs"]["small"]["found"]["gradients_differ"] == {}
    assert {row["measured"]["kind"] for row in found["rows"]} == {"measured"}
    assert all(row["predicted"]["seconds"] > 0 for row in found["rows"])
    assert "small: measured, PP 1 x EP 2" in text


@pytest.mark.root
@pytest.mark.slow
def test_ranks_in_network_namespaces_leave_nothing_behind(tmp_path: Path) -> None:
    _, found = _run(tmp_path, 'eager = ["zbv"]\n' + SMALL.replace("emulated", "namespaces"))
    assert found["configs"]["small"]["found"]["network"] == "namespaces"
    assert {row["measured"]["kind"] for row in found["rows"]} == {"paced"}
    assert _namespaces() == [], "a lab's names carry the number of the process that made it"


def _namespaces() -> list[Path]:
    folder = Path("/run/netns")
    return [path for path in folder.iterdir() if f"-{os.getpid()}-" in path.name] if folder.is_dir() else []


@pytest.mark.nightly
def test_copies_of_the_ranks_sum_their_gradients_in_the_step_and_routing_is_skewed(tmp_path: Path) -> None:
    text, found = _run(tmp_path, 'dp = 2\neager = ["dualpipev"]\nskew = [1.0, 1.5]\n' + SMALL)
    about = found["configs"]["small"]["found"]
    assert about["gradients_differ"] == {}
    assert about["sum_s"] > 0.0
    assert "PP 2 x EP 2 x DP 2" in text
    assert "sum of gradients" in text
    seconds = {str(Variant.from_plain(row)): row["predicted"]["seconds"] for row in found["rows"]}
    assert len(seconds) == 6
    assert all(seconds[name] < seconds[f"{name}, skew 1.5"] for name in seconds if "skew" not in name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounds": 0}, "rounds=0: give at least 1"),
        ({"layers": 3}, "layers=3: give an even number"),
        ({"network": "radio"}, "network 'radio' is not one of"),
        ({"ratio": 0.0}, "the rate and the ratio of computation to communication are positive"),
        ({"head": 0.0}, "head=0.0: give how many times as long"),
        ({"paced": False}, "real computation is measured with 1 pipeline rank"),
        ({"expert_ranks": 1}, "give at least 2 expert ranks"),
        ({"data_ranks": 0}, "data_ranks=0: give at least 1"),
        (
            {"variants": (DUALPIPEV.without(nano_batches=3),)},
            "nano_batches=3: they are measured with paced computation",
        ),
        ({"variants": (DUALPIPEV.without(compiled=True),)}, "compile: paced computation takes its known time"),
        ({"variants": (DUALPIPEV.without(skew=0.5),)}, "skew=0.5: give 1 for even routing, or more"),
        ({"variants": (DUALPIPEV.without(skew=2.0),)}, "leave a rank without any: give a skew between 1 and 1.96875"),
        (
            {**REAL, "variants": (DUALPIPEV.without(skew=1.5),)},
            "skew: routing is skewed in models whose computation is",
        ),
        ({**REAL, "variants": (DUALPIPEV.without(nano_batches=2),)}, "nano_batches=2: they are measured with paced"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        MoeCase(**fields)


def test_a_case_survives_its_text_form() -> None:
    case = MoeCase(pipeline_ranks=4, variants=(DUALPIPEV, Variant("eager", "zbv", skew=1.5)))
    assert MoeCase.from_json(case.to_json()) == case


@given(st.integers(1, 9), st.integers(1, 40), st.floats(1.0, 4.0))
def test_every_copy_of_a_token_goes_to_one_rank_and_the_first_gets_the_most(ranks: int, each: int, skew: float) -> None:
    try:
        copies = copies_to(ranks * each, ranks, skew)
    except ap.CostError:
        assert round(each * skew) > ranks * each - (ranks - 1), "there is room for all"
        return
    assert sum(copies) == ranks * each
    assert len(copies) == ranks
    assert copies[0] == max(copies)
    assert min(copies) >= 1


def test_the_eager_schedules_are_those_of_the_eager_runtime() -> None:
    assert EAGER == EAGER_SCHEDULES


def test_a_layer_has_the_same_name_and_values_however_the_model_is_cut(block) -> None:
    for case in (MoeCase(pipeline_ranks=1, width=8, top_k=2), MoeCase(pipeline_ranks=1, width=8, top_k=2, paced=False)):
        (whole,) = stages(case, 1)
        parts = {name: value for stage in stages(case, 2) for name, value in stage.named_parameters()}
        assert parts.keys() == dict(whole.named_parameters()).keys()
        assert all(torch.equal(parts[name], value) for name, value in whole.named_parameters())


def stages(case: MoeCase, count: int) -> list[torch.nn.Module]:
    return [stage_module(case, 2 // count, stage, 0.0, dist.group.WORLD) for stage in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: {**found, "0.weight": found["1.weight"], "1.weight": found["0.weight"]},
        lambda found: {**found, "0.weight": -found["0.weight"]},
        lambda found: {**found, "0.weight": found["0.weight"].flip(0)},
        lambda found: {**found, "0.weight": found["0.weight"].t()},
        lambda found: {**found, "1.weight": found["1.weight"] * 1.001},
        lambda found: {**found, "0.weight": None},
        lambda found: {**found, "1.weight": torch.full((3, 3), float("nan"))},
    ],
)
def test_gradients_that_are_swapped_turned_or_lost_are_found(change) -> None:
    generator = torch.Generator().manual_seed(0)
    found = {f"{layer}.weight": torch.randn(3, 3, generator=generator) for layer in range(2)}
    assert differing(printed(found), printed({name: value * (1 + 1e-6) for name, value in found.items()})) == []
    changed = differing(printed(found), printed(change(found)))
    assert changed == [f"rank 0 {name}" for name, value in change(found).items() if value is not found[name]]


def printed(gradients: dict) -> Fingerprints:
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3, bias=False) for _ in gradients))
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    return fingerprints([model], "rank 0")


def test_more_real_ranks_than_cores_are_refused() -> None:
    result = CliRunner().invoke(command, ["--config", "medium", "--expert-ranks", "512", "--network", "loopback"])
    assert "measures nothing: use fewer ranks" in str(result.exception)
