"""The overlap job on real ranks: bitwise equal everywhere, one table, plain data, and messages for what cannot run."""

import importlib.util
import json
import os
import textwrap
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from annopipe.errors import CostError
from annopipe.models.routing import RoutingKind
from benchmarks.launch import run_ranks
from benchmarks.overlap import command
from benchmarks.pair.case import ROUTINGS, Case
from benchmarks.pair.limits import judge, limits_table
from benchmarks.pair.nano import comparisons, nano_table
from benchmarks.pair.regions import regions_table
from benchmarks.pair.report import table
from benchmarks.pair.wording import label

SMALL = ["--sequence", "16", "--rounds", "1"]


def _run(tmp_path: Path, *options: str) -> tuple[str, list[dict]]:
    output = ["--json", str(tmp_path / "result.json"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command, [*SMALL, *options, *output], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output, json.loads((tmp_path / "result.json").read_text())["cases"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_policy_is_bitwise_equal_to_eager_on_real_ranks(ranks: int, tmp_path: Path) -> None:
    text, (case,) = _run(tmp_path, "--ranks", str(ranks), "--blocks", "1", "--real", "--network", "loopback")
    assert case["ranks"] == ranks
    assert case["bitwise_equal"]
    assert [row["name"] for row in case["rows"]] == ["eager", *Case.policies]
    assert "all results bitwise equal to eager" in text
    assert (tmp_path / "out" / "real-1" / "timeline.html").is_file()
    assert (tmp_path / "out" / "real-1" / "timeline.png").is_file() == bool(importlib.util.find_spec("matplotlib"))


def test_paced_and_emulated_times_are_labelled_so(tmp_path: Path) -> None:
    text, (case,) = _run(tmp_path, "--blocks", "1", "--paced", "--network", "emulated", "--policy", "sequential")
    (row,) = case["rows"]
    assert "paced, emulated" in text
    assert case["computation_s"] == pytest.approx(case["communication_s"], rel=0.05)
    assert row["measured_s"] >= 0.99 * case["computation_s"], "paced computation is waited for"


@pytest.mark.slow
def test_one_graph_alone_with_nano_batches_is_equal_to_eager_and_computes_as_long_as_without(tmp_path: Path) -> None:
    options = ["--graph", "step", "--nano-batches", "1,2", "--policy", "sequential", "--policy", "dualpipe"]
    text, results = _run(tmp_path, "--blocks", "1", "--paced", "--network", "loopback", *options)
    assert all(result["bitwise_equal"] for result in results)
    by_case = {(r["case"]["graph"], r["case"]["nano_batches"]): r["computation_s"] for r in results}
    for graph in ("forward", "backward"):
        assert by_case[graph, 2] == pytest.approx(by_case[graph, 1], rel=0.05)
    assert "one graph alone, with nano-batches" in text
    assert (tmp_path / "out" / "paced-1-forward-nano2" / "timeline.html").is_file()


@pytest.mark.root
def test_ranks_in_network_namespaces_leave_nothing_behind(tmp_path: Path) -> None:
    _, (case,) = _run(tmp_path, "--blocks", "1", "--paced", "--network", "namespaces")
    assert case["bitwise_equal"]
    folder = Path("/run/netns")
    own = [path for path in folder.iterdir() if f"-{os.getpid()}-" in path.name] if folder.is_dir() else []
    assert own == [], "a lab's names carry the number of the process that made it"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--blocks", "0"], "'0' is not a positive number"),
        (["--blocks", "x"], "'x' is not a positive number"),
        (["--ranks", "0"], "0 is not in the range"),
        (["--rate", "fast"], "fast"),
        (["--network", "radio"], "'radio' is not one of"),
        (["--network", "pinned"], "'pinned' is not one of"),
        (["--ratio", "much"], "'much' is not a valid float"),
        (["--policy", "lst", "--network", "loopback"], "no overlap policy 'lst'"),
        (["--policy", "B.combine F.attention", "--network", "loopback"], "two pieces in a row"),
        (["--routing", "balanced,random"], "'random' is not one of learned, balanced, skewed"),
        (["--nano-batches", "1,x"], "'x' is not a positive number"),
        (["--nano-batches", "1,3", "--split", "stage", "--batch", "2"], "3 nano-batches need --batch 3 or more"),
        (["--skew", "-1"], "-1.0 is not in the range"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(options: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [*SMALL, *options, "--output", str(tmp_path)])
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks": 0}, "blocks=0: give at least 1"),
        ({"network": "radio"}, "network 'radio' is not one of"),
        ({"rate_bytes_per_s": 0.0}, "the rate is positive"),
        ({"routing": "random"}, "routing 'random' with skew 1.0: the routing is one of learned, balanced, skewed"),
        ({"skew": -1.0}, "routing 'learned' with skew -1.0"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(CostError, match=message):
        Case(**fields)


def test_routings_are_those_of_the_models() -> None:
    assert get_args(RoutingKind) == ROUTINGS


def test_a_case_survives_its_text_form() -> None:
    case = Case(blocks=3, paced=True, routing="skewed", skew=1.5, policies=("list",))
    assert Case.from_json(case.to_json()) == case


def test_what_all_cases_share_is_no_column_of_the_table() -> None:
    result = _result(True, list=1.2)
    result |= {
        "cores": 2,
        "expert_loads": [[1, 1]],
        "bitwise_equal": True,
        "computation_s": 1.0,
        "communication_s": 1.0,
    }
    for row in result["rows"]:
        row.setdefault("hidden_share", None)
    other = {**result, "case": {**result["case"], "blocks": 4}}
    assert table([result]).splitlines()[2].split()[:2] == ["times", "order"]
    assert table([result, other]).splitlines()[3].split()[:3] == ["blocks", "times", "order"]


def test_wrong_results_are_shown_in_the_table() -> None:
    case = json.loads(Case().to_json())
    row = {
        "name": "list",
        "measured_s": 1.0,
        "fastest_s": 0.9,
        "slowest_s": 1.1,
        "simulated_s": 1.0,
        "hidden_share": 0.5,
    }
    times = dict.fromkeys(("bound_s", "computation_s", "communication_s"), 1.0)
    text = table(
        [
            {
                "case": case,
                "ranks": 2,
                "cores": 2,
                "expert_loads": [[2, 2, 4, 0]],
                "bitwise_equal": False,
                "wrong": {"list": ["output"]},
                "rows": [row],
                **times,
            }
        ]
    )
    assert "WRONG RESULTS: {'list': ['output']}" in text
    assert "tokens of the busiest expert 2.00 times the mean, of the busiest rank 1.00" in text
    assert label(case) == "measured"


@pytest.mark.slow
def test_balanced_and_skewed_routing_are_reported_side_by_side(tmp_path: Path) -> None:
    options = ["--blocks", "1", "--paced", "--network", "loopback", "--routing", "balanced,skewed", "--skew", "2"]
    text, results = _run(tmp_path, *options)
    assert [result["case"]["routing"] for result in results] == ["balanced", "skewed"]
    assert all(result["bitwise_equal"] for result in results)
    balanced, skewed = (result["expert_loads"][0] for result in results)
    assert max(balanced) - min(balanced) <= 1
    assert sum(balanced) == sum(skewed) == 2 * 16 * 2  # ranks, tokens of each, experts of a token
    assert max(skewed) > 1.5 * max(balanced)
    for result in results:
        assert set(result["regions"]) == set(Case.policies)
        for row in result["regions"]["list"]:
            assert row["hidden"] + row["exposed"] == pytest.approx(row["comm"])
        names = {(row["lane"], row["region"]) for row in result["regions"]["list"]}
        assert names == {(lane, f"block0/moe/{name}") for lane in "BF" for name in ("dispatch", "combine")}
    assert [row["name"] for row in results[0]["rows"]] == list(Case.policies)
    assert "balanced: ms" in text
    assert "skewed 2: ms" in text
    assert (tmp_path / "out" / "paced-1-skewed" / "timeline.html").is_file()


def test_the_table_of_regions_has_columns_for_each_routing_and_the_fastest_order() -> None:
    def result(routing: str, exposed_s: float) -> dict:
        row = {"region": "moe/dispatch", "lane": "F", "comm": 4e-3, "hidden": 4e-3 - exposed_s, "exposed": exposed_s}
        rows = [{"name": "list", "simulated_s": 1.0}, {"name": "sequential", "simulated_s": 2.0}]
        case = {**json.loads(Case().to_json()), "routing": routing, "skew": 1.0}
        return {"case": case, "ranks": 2, "cores": 2, "rows": rows, "regions": {"sequential": [], "list": [row]}}

    lines = regions_table([result("balanced", 1e-3), result("skewed", 3e-3)]).splitlines()
    assert lines[0] == "communication by region, order list, 2 blocks, measured costs, simulated"
    assert lines[1].split("  ")[-1].strip() == "exposed"
    expected = ["4.0", "3.0 (75%)", "1.0 (25%)", "4.0", "1.0 (25%)", "3.0 (75%)"]
    assert [cell.strip() for cell in lines[3].split("  ") if cell.strip()] == ["F", "moe/dispatch", *expected]
    assert [cell.strip() for cell in lines[4].split("  ") if cell.strip()] == ["all", *expected]


def _result(paced: bool, **measured: float) -> dict:
    rows = [
        {
            "name": n,
            "measured_s": m,
            "fastest_s": m * 0.98,
            "slowest_s": m * 1.02,
            "simulated_s": 1.0,
            "hidden_share": 0.5,
        }
        for n, m in measured.items()
    ]
    return {"case": json.loads(Case(paced=paced).to_json()), "ranks": 2, "bound_s": 1.0, "rows": rows}


def test_limits_are_kept_or_missed_as_they_say() -> None:
    kept = {(limit.order, limit.what): limit.kept for limit in judge([_result(True, list=1.04, alternate=1.3)])}
    assert kept["list", "measured / simulated"]
    assert kept["list", "measured / bound"]
    assert not kept["alternate", "measured / simulated"]
    assert not kept["alternate", "measured / bound"]
    real = {
        limit.order: limit.kept
        for limit in judge([_result(False, eager=1.0, sequential=1.01, list=0.97, alternate=1.0)])
    }
    assert real == {"sequential": True, "list": True, "alternate": False}
    assert "MISSED" in limits_table(judge([_result(True, list=1.2)]))
    skewed = _result(True, list=1.2)
    skewed["case"]["routing"] = "skewed"
    assert judge([skewed]) == [], "the limits are those of the learned routing"


def _alone(graph: str, parts: int, ms: dict[str, float], reason: str = "") -> dict:
    rows = [
        {"name": n, "measured_s": m / 1e3, "fastest_s": m / 1e3, "slowest_s": m / 1e3, "simulated_s": m / 1e3}
        for n, m in ms.items()
    ]
    case = Case(paced=True, graph=graph, nano_batches=parts, nano_batched="stage")  # type: ignore[arg-type]
    return {
        "case": json.loads(case.to_json()),
        "ranks": 2,
        "cores": 2,
        "rows": [{**row, "reason": reason} for row in rows],
        "computation_s": 0.1,
        "bound_s": 0.1,
    }


def test_nano_batches_are_compared_with_the_whole_graph_and_steps_added_up() -> None:
    results = [
        _alone("forward", 1, {"sequential": 200.0, "auto": 180.0}),
        _alone("forward", 2, {"sequential": 210.0, "auto": 130.0}),
        _alone("backward", 1, {"sequential": 200.0, "auto": 200.0}),
        _alone("backward", 2, {"sequential": 210.0, "auto": 140.0}),
    ]
    found = {(x.graph, x.order): x.hidden for x in comparisons(results)}
    assert found["forward", "auto"] == pytest.approx(0.7)
    assert found["backward", "auto"] == pytest.approx(0.6)
    assert found["step", "auto"] == pytest.approx(0.65)
    assert "lose" not in nano_table(results)
    limits = {limit.run: limit.kept for limit in judge(results) if "hidden" in limit.what}
    assert limits == {
        "2 ranks, 2 blocks, forward, stage in 2, paced": True,
        "2 ranks, 2 blocks, step, stage in 2, paced": True,
    }
    assert nano_table(results[:1]) == "", "there is nothing to compare"


def test_nano_batches_that_lose_are_named_with_the_reason_of_their_plan() -> None:
    why = "nano-batches lose: do not split here"
    whole = _alone("forward", 1, {"sequential": 100.0})
    text = nano_table([whole, _alone("forward", 2, {"sequential": 120.0, "auto": 110.0}, why)])
    assert "nano-batches lose: forward, stage in 2, 2 blocks: 110.0 ms at best, and 100.0 without" in text
    assert why in text


def test_real_times_with_more_ranks_than_cores_are_labelled_so() -> None:
    case = json.loads(Case().to_json())
    assert label(case, ranks=4, cores=2) == "more ranks than cores"
    assert label({**case, "paced": True}, ranks=4, cores=2) == "paced"


def test_a_wrong_gradient_on_any_rank_is_found(tmp_path: Path) -> None:
    program = """
        import torch, torch.distributed as dist
        from benchmarks.launch import end_rank
        from benchmarks.pair import worker
        from benchmarks.pair.case import ROUTINGS, Case
        from benchmarks.pair.stage import Pair
        honest = Pair.differences
        Pair.differences = lambda self, result: honest(self, result) + ["input"] * dist.get_rank()
        dist.init_process_group("gloo")
        case = Case(blocks=1, sequence=8, rounds=1, policies=("sequential",))
        result = worker.measure_case(case, torch.device("cpu"), lambda text: None)
        print(result["bitwise_equal"], result["wrong"])
        dist.barrier(); end_rank()
    """
    (tmp_path / "broken_rank.py").write_text(textwrap.dedent(program))
    outputs = run_ranks("broken_rank", 2, env={"PYTHONPATH": str(tmp_path)}, timeout_s=400)
    assert [text.strip() for text in outputs] == ["False {'sequential': ['rank 1: input']}"] * 2
