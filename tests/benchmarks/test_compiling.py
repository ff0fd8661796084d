"""``annopipe bench compile``: its tables; the measurement itself takes minutes."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.compiling import command, overhead


def result(settings: dict[str, Any], folder: str) -> dict[str, Any]:
    assert folder
    row = {"size": "tiny", "graph": "forward", "nodes": 414, "eager_s": 4e-3, "compiled_s": 2e-3, "ratios": [0.4, 0.6]}
    graphs = [{**row, "error": 7e-7, "stretches": 21, "distinct": 12}]
    seconds = 16.0 if settings["rounds"] else 300.0
    compilation = [{"size": "tiny", "distinct": 21, "seconds": seconds}]
    return {"graphs": graphs, "compilation": compilation, "runner": {"call of a graph, annopipe": 4.125}}


def test_the_tables_say_what_was_measured_in_both_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_run", result)
    output = CliRunner().invoke(command.command, ["--size", "tiny"], catch_exceptions=False).output
    rows = [line.split() for line in output.splitlines()]
    assert ["tiny", "forward", "414", "4.00", "2.00", "0.50", "0.40-0.60", "7e-07", "21", "12"] in rows
    assert ["tiny", "21", "300.0", "16.0"] in rows
    found = json.loads(CliRunner().invoke(command.command, ["--json"], catch_exceptions=False).output)
    assert found["compilation"] == [{"size": "tiny", "distinct": 21, "seconds": 16.0, "cold_s": 300.0}]


def test_the_runner_is_measured_in_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_NODES", 20), ("_REPEATS", 1), ("_TRIES", 1)):
        monkeypatch.setattr(overhead, name, value)
    assert [what.split(",")[0] for what in overhead.runner_us()] == [
        "node",
        "node",
        "call of a graph",
        "compiled stretch",
        "action of a pipeline",
    ]
