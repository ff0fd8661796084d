"""``annopipe report``: one run ranked, two compared, and what is no run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.moe_results import results
from tests.cli.running import Result

Run = Callable[..., Result]


def row(schedule: str, times: Sequence[float], simulated: float | None = None) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "runtime": "annopipe",
        "schedule": schedule,
        "measured_s": ordered[len(ordered) // 2],
        "fastest_s": ordered[0],
        "slowest_s": ordered[-1],
        "times_s": list(times),
        "simulated_s": simulated,
    }


def write(path: Path, rows: Sequence[dict[str, Any]], **settings: Any) -> Path:
    path.write_text(json.dumps({"cases": [{"case": {"ranks": 2, **settings}, "rows": rows}]}))
    return path


BEFORE = [
    row("zbv", [0.10, 0.11, 0.12], 0.1),
    row("1f1b", [0.20, 0.21, 0.22]),
    row("gpipe", [0.3, 0.3, 0.3]),
    row("old", [1.0] * 3),
]
AFTER = [row("zbv", [0.13, 0.14, 0.15], 0.1), row("1f1b", [0.21, 0.19, 0.23]), row("gpipe", [0.2]), row("new", [1.0])]


def test_changes_outside_of_the_noise_are_named(annopipe: Run, tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", BEFORE, rounds=3), write(tmp_path / "b.json", AFTER, rounds=5)
    found = json.loads(annopipe("report", str(before), str(after), "--json").stdout)
    assert {change["name"].split()[1]: change["verdict"] for change in found} == {
        "zbv": "slower",
        "1f1b": "noise",
        "gpipe": "?",
        "old": "gone",
        "new": "new",
    }
    assert found[0]["ratio"] == pytest.approx(0.14 / 0.11)
    text = annopipe("report", str(before), str(after)).stdout
    assert text.splitlines()[-1] == (
        "1 slower, 1 noise; 1 with fewer than three repetitions, of which nothing can be said"
    )
    assert "faster" in annopipe("report", str(after), str(before)).stdout


def test_one_run_is_ranked_and_ties_share_a_place(annopipe: Run, tmp_path: Path) -> None:
    rows = [*BEFORE[:2], row("dualpipev", [0.11, 0.12, 0.13])]
    (found,) = json.loads(annopipe("report", str(write(tmp_path / "a.json", rows)), "--json").stdout)
    assert [(each["name"].split()[1], each["place"]) for each in found["rows"]] == [
        ("zbv", 1),
        ("dualpipev", 1),
        ("1f1b", 3),
    ]
    assert "1.100" in annopipe("report", str(tmp_path / "a.json")).stdout


def test_with_too_few_repetitions_nothing_shares_a_place(annopipe: Run, tmp_path: Path) -> None:
    rows = [row("zbv", [0.1]), row("1f1b", [0.1])]
    (found,) = json.loads(annopipe("report", str(write(tmp_path / "a.json", rows)), "--json").stdout)
    assert [each["place"] for each in found["rows"]] == [1, 2]


def test_cases_are_matched_by_what_they_measured(annopipe: Run, tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", BEFORE, layers=2), write(tmp_path / "b.json", BEFORE, layers=4)
    result = annopipe("report", str(before), str(after))
    assert result.returncode == 2
    assert "no case in common: their first ones differ in layers (2 and 4)" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot read a run"),
        ("[]", "is no run of"),
        ('{"cases": []}', "has no cases"),
        ('{"cases": [{"case": {}, "rows": [{"measured_s": 1}]}]}', "is no run of"),
        ('{"cases": [{"case": {}, "rows": [{"name": "a", "measured_s": "x"}]}]}', "is no run of"),
    ],
)
def test_what_is_no_run_is_refused_by_name(annopipe: Run, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    result = annopipe("report", str(path))
    assert result.returncode == 2
    assert said in result.stderr
    assert "a.json" in result.stderr


def test_the_page_of_a_run_is_written_and_its_paths_printed(annopipe: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")
    path, folder = tmp_path / "moe.json", tmp_path / "out" / "page"
    path.write_text(json.dumps(results()))
    printed = annopipe("report", str(path), "--html", str(folder)).stdout.splitlines()
    assert printed[0] == str(folder / "page.html")
    assert sorted(printed) == sorted(map(str, folder.iterdir()))


def test_a_page_is_refused_for_two_runs_and_for_what_is_no_run_of_the_moe_job(annopipe: Run, tmp_path: Path) -> None:
    path, folder = write(tmp_path / "a.json", BEFORE), tmp_path / "page"
    for more in ([str(path)], ["--json"]):
        result = annopipe("report", str(path), *more, "--html", str(folder))
        assert result.returncode == 2
        assert "--html writes the page of one run: leave out OTHER.json and --json" in result.stderr
    result = annopipe("report", str(path), "--html", str(folder))
    assert result.returncode == 2
    assert "a.json: these are results of no benchmark by name: a page is made of what" in result.stderr
    path.write_text("{")
    assert "cannot read a run from" in annopipe("report", str(path), "--html", str(folder)).stderr
    assert not folder.exists()
