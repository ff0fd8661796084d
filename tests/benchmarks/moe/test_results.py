"""Results of the MoE job: what a run that was cut short has, the headline, the talk's numbers, and the text."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.moe import simulated
from benchmarks.moe.command import command, run
from benchmarks.moe.config import Config
from benchmarks.moe.grid import grid
from benchmarks.moe.report import report
from benchmarks.moe.results import Results
from benchmarks.moe.simulated import simulate
from benchmarks.moe.variant import Variant
from benchmarks.reporting.runs import Run
from tests.processes import handled, signalled_process

PACED = Config.of_table(
    "small",
    {"schedules": ["1f1b", "zbv", "dualpipev"], "eager": ["1f1b", "zbv", "dualpipev"], "nano_batches": [1, 2]},
)
MIXTRAL = {"name": "mixtral-8x7b", "sequence": 64}
SHORT = Config.of_table(
    "mixtral",
    {"kind": "simulated", "microbatches": 4, "model": MIXTRAL, "cluster": {"machine": "h100", "memory": 80e9}},
)
# Of the chain, each step 1.25 times as fast as the one before, and others.
SECONDS = {
    "eager 1f1b": 4.1,
    "eager zbv": 2.0 * 1.25**3,
    "eager dualpipev": 4.2,
    "annopipe 1f1b": 3.4,
    "annopipe zbv": 2.0 * 1.25**2,
    "annopipe dualpipev": 2.0 * 1.25,
    "annopipe dualpipev, sequential": 2.0 * 1.25,
    "annopipe dualpipev, auto": 2.0,
    "annopipe dualpipev, auto, /2": 1.6,
}
FOUND = {"network": "namespaces", "transfer_s": 0.02, "stretch_s": 0.01, "sum_s": 0.0}


def measured(names: dict[str, float], *, spread: float = 0.01, config: Config = PACED) -> Results:
    """A run that has these times, and a prediction of everything."""
    results = Results([(config, grid(config))])
    results.configs["small"]["found"] = {**FOUND, "gradients_differ": {}, "nano_batches": []}
    for variant, row in results.rows(config).items():
        row["predicted"] = predicted(1.0)
        row["timeline"] = [(0, "compute", 0.0, 1.0, "0F0")]
        seconds = names.get(str(variant))
        times = [] if seconds is None else [seconds, seconds * (1 - spread), seconds * (1 + spread)]
        row["measured"] = {"kind": "paced", "seconds": times, "exposed_seconds": 0.75, "peak_bytes": 3 * 2**20}
    return results


def predicted(seconds: float) -> dict[str, Any]:
    numbers = {"seconds": seconds, "exposed_seconds": 0.5, "peak_bytes": 2_500_000, "bound_seconds": 0.75}
    return {**numbers, "bubble": 0.25}


def test_the_chain_multiplies_to_the_headline() -> None:
    found = measured(SECONDS).plain()["headline"]
    assert (found["of"], found["by"]) == ("eager zbv", "annopipe dualpipev, auto, /2")
    assert [text for text, _ in found["chain"]] == [
        "runtime: zbv on annopipe",
        "schedule: dualpipev, pairs apart",
        "pairs as one graph, not reordered",
        "pairs reordered by auto",
        "nano-batches of 2",
    ]
    assert [ratio for _, ratio in found["chain"]] == pytest.approx([1.25, 1.25, 1.0, 1.25, 1.25])
    assert found["found"] == pytest.approx(1.25**4)
    assert found["least"] == pytest.approx(1.25**4 * 0.99 / 1.01)


@pytest.mark.parametrize("missing", ["annopipe zbv", "annopipe dualpipev, sequential", "annopipe dualpipev, auto"])
def test_without_a_link_of_the_chain_there_is_no_headline(missing: str) -> None:
    found = measured({name: seconds for name, seconds in SECONDS.items() if name != missing}).plain()
    assert (found["headline"], found["headlines"]) == (None, [])


def test_what_was_not_reached_says_so_and_what_was_is_there() -> None:
    results = measured({"annopipe 1f1b": 3.4})
    results.ended = 130
    found = results.plain()
    reached = [row for row in found["rows"] if row["measured"] is not None]
    assert [str(Variant.from_plain(row)) for row in reached] == ["annopipe 1f1b"]
    assert {row["why_missing"] for row in found["rows"]} == {"", "the run ended before this"}
    text = report(found)
    assert "the run ended before this (10 rows: annopipe 1f1b, auto, /2, ...)" in text
    assert text.endswith("interrupted: what was done until then")
    assert "tiny: not reached" in report(Results([(config, grid(config)) for config in [Config.named("tiny")]]).plain())


def test_the_talk_stands_beside_what_was_found_and_how() -> None:
    rows = {(name, how): found for name, _, found, how in measured(SECONDS).plain()["talk"]}
    assert rows["graphs over eager, DualPipe", "small, paced: dualpipev, the runtime and overlap, not compiled"] == 2.1
    assert rows["passes over 1F1B, DualPipe", "small, paced: dualpipev"] == pytest.approx(1.7)
    noisy = [how for *_, how in measured(SECONDS, spread=0.5).plain()["talk"]]
    assert all("within the spread of the rounds" in how for how in noisy)
    without_times = measured({}).plain()["talk"]
    assert {how.partition(":")[0] for *_, how in without_times} == {"small, simulated"}


def test_the_text_has_every_row_with_its_place_and_its_gain() -> None:
    text = report(measured(SECONDS).plain())
    assert "small: paced, PP 2 x EP 2, 8 microbatches; network namespaces, a medium of 12.5 MB/s" in text
    assert "all-to-all 20.0 ms; stretch of computation 10.0 ms; gradients agree" in text
    lines = [line.split() for line in text.splitlines()]
    winner = ["annopipe", "dualpipev", "auto", "/2", "1600.0", "1584.0-1616.0", "1000.0", "1.600", "750.0"]
    exposed, peaks = ["750.0", "500.0"], ["3", "MiB", "2.384", "MiB"]
    assert [*winner, *exposed, "25%", *peaks, "1", "2.44x"] in lines
    places = {(line[0], line[1]): line[-2] for line in lines if line[:1] == ["eager"]}
    assert places == {("eager", "1f1b"): "8", ("eager", "zbv"): "7", ("eager", "dualpipev"): "9"}
    assert "is 2.44 times as fast as eager zbv, the best eager schedule of the run (asked: 1.5;" in text
    assert "Published for 64 H100" in text


def test_why_skewed_rows_expose_more_than_simulated_is_said() -> None:
    said = "ranks with fewer rows wait for the busiest"
    assert said not in report(measured(SECONDS).plain())
    skewed = Config.of_table("small", {"schedules": ["1f1b"], "eager": [], "skew": [1.0, 1.5]})
    assert said in report(measured({"annopipe 1f1b, skew 1.5": 3.7}, config=skewed).plain())


def test_different_gradients_are_shown() -> None:
    results = measured(SECONDS)
    results.configs["small"]["found"]["gradients_differ"] = {"eager zbv": ["expert rank 0 1.attention", "other"]}
    assert "GRADIENTS DIFFER: eager zbv (expert rank 0 1.attention and 1 more)" in report(results.plain())


def test_a_file_of_results_can_be_reported_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(measured(SECONDS).plain()))
    (case,) = Run.read(path).cases
    assert {name: row.measured_s for name, row in case.rows.items()} == pytest.approx(SECONDS)
    assert case.compared_settings()["pp"] == 2
    assert "found" not in case.settings


def test_a_model_that_cannot_run_here_is_predicted_under_every_variant() -> None:
    table = {"schedules": ["1f1b", "dualpipev"], "eager": ["dualpipev"], "compile": [False, True], "skew": [1.0, 1.5]}
    more = {"kind": "simulated", "microbatches": 4, "nano_batches": [1, 2], "nano_batched": ["dualpipev"]}
    model = {"model": {"name": "mixtral-8x7b", "sequence": 256}, "cluster": {"machine": "h100", "memory": 80e9}}
    config = Config.of_table("mixtral", {**table, **more, **model})
    results = Results([(config, grid(config))])
    said: list[str] = []
    simulate(config, results.rows(config), said.append)
    found = {str(variant): row["predicted"]["seconds"] for variant, row in results.rows(config).items()}
    assert found["eager dualpipev"] == found["annopipe dualpipev, sequential"]
    assert found["annopipe dualpipev, auto, compiled"] < found["annopipe dualpipev, auto"]
    assert found["annopipe dualpipev, auto"] < found["annopipe dualpipev, sequential"]
    assert found["annopipe dualpipev, auto, /2"] <= found["annopipe dualpipev, auto"]
    assert all(found[name] < found[f"{name}, skew 1.5"] for name in found if "skew" not in name)
    rows = results.plain()["rows"]
    assert all(row["predicted"]["bound_seconds"] <= row["predicted"]["seconds"] for row in rows)
    assert {row["why_missing"] for row in rows} == {"not measured: it takes 4 devices like h100"}
    text = report(results.plain())
    assert "mixtral: simulated, PP 2 x EP 2, 4 microbatches; mixtral-8x7b, layers traced" in text
    count = sum(row["predicted"]["peak_bytes"] > 80e9 for row in rows)
    assert count > 0
    assert f"{count} of {len(rows)} rows hold more than the 74.51 GiB of a device" in text


def test_ctrl_c_while_a_model_is_simulated_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.moe.simulated.predicted_row", interrupted)
    results = run([SHORT])
    assert results.ended == 130
    rows = results.plain()["rows"]
    assert {(row["predicted"], row["why_missing"]) for row in rows} == {(None, "the run ended before this")}


def test_ctrl_c_while_layers_are_traced_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, price = [], simulated._workload

    def interrupted(*given: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        traced.append(price(*given, **more))
        return traced[-1]

    monkeypatch.setattr(simulated, "_workload", interrupted)
    with handled(signal.SIGINT, signal.default_int_handler):
        results = run([SHORT])
    assert (len(traced), results.ended) == (1, 130)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_ranks_and_what_there_is_is_written(tmp_path: Path, number: signal.Signals) -> None:
    config, path = tmp_path / "small.toml", tmp_path / "run.json"
    config.write_text('microbatches = 4\nrounds = 500\neager = []\npolicies = ["auto"]\n[network]\nkind = "emulated"\n')
    arguments = [sys.executable, "-m", "annopipe", "bench", "moe", "--config", str(config), "--json", str(path)]
    with signalled_process(arguments, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 3" in line:
                process.send_signal(number)
                break
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert text.rstrip().endswith("interrupted: what was done until then")
    found = json.loads(path.read_text())
    assert found["interrupted"]
    for row in found["rows"]:
        assert 2 <= len(row["measured"]["seconds"]) <= 3
        for name in ("exposed_seconds", "peak_bytes"):
            assert row["measured"][name] > 0, f"{name}: the steps that warm up were watched"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _children(process.pid):
        time.sleep(0.1)
    assert not _children(process.pid)


def _children(parent: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(stat.parent.name)
    return found


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(command, ["--quick", "--json", str(tmp_path / "file" / "run.json")])
    assert "cannot write" in str(result.exception)


def test_an_unknown_model_is_refused_before_anything_runs(tmp_path: Path) -> None:
    table = {"kind": "simulated", "model": {"name": "gpt-9"}, "cluster": {"machine": "h100", "memory": 80e9}}
    with pytest.raises(Exception, match="there is no model 'gpt-9'"):
        run([Config.of_table("mine", table)])
