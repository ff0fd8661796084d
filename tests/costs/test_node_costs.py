"""NodeCosts: files, lanes, and what is refused."""

import dataclasses
import json
from pathlib import Path

import pytest

import annopipe as ap
from annopipe.simulation import Network

COSTS = ap.NodeCosts({"mm": 1e-3, "l": 2e-3}, {"l": 1e-4}, {"l": 1e-5}, Network(in_flight=2), "measured")


def test_costs_survive_a_file(tmp_path: Path) -> None:
    COSTS.save(tmp_path / "costs.json")
    assert ap.costs.load(tmp_path / "costs.json") == COSTS


def test_costs_of_two_graphs_join_under_their_lanes() -> None:
    joined = COSTS.in_lane("F") | ap.NodeCosts({"mm": 3e-3}, network=COSTS.network).in_lane("B")
    assert joined.source == "measured and given"
    assert joined.seconds == {"F.mm": 1e-3, "F.l": 2e-3, "B.mm": 3e-3}
    assert joined.latency == {"F.l": 1e-4}
    assert joined.issue == {"F.l": 1e-5}


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "1"])
def test_a_cost_that_is_no_time_is_refused(bad: object) -> None:
    with pytest.raises(ap.CostError, match="the cost of mm is"):
        ap.NodeCosts({"mm": bad})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read node costs"),
        ("[]", "is not a file of node costs"),
        ('{"format": "other"}', "is not a file of node costs"),
    ],
)
def test_a_file_of_something_else_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ap.CostError, match=message):
        ap.costs.load(path)


def test_a_file_with_a_malformed_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    COSTS.save(path)
    data = json.loads(path.read_text())
    data["network"] = {"lanes": 3}
    path.write_text(json.dumps(data))
    with pytest.raises(ap.CostError, match="costs.json is malformed"):
        ap.costs.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ap.CostError, match="cannot read node costs"):
        ap.costs.load(tmp_path / "nothing.json")


def test_file_from_before_interference_was_known_has_none(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    COSTS.save(path)
    data = json.loads(path.read_text())
    assert data["network"].pop("interference") == 0.0
    path.write_text(json.dumps(data))
    assert ap.costs.load(path) == COSTS


def test_interference_is_kept_in_the_file(tmp_path: Path) -> None:
    costs = dataclasses.replace(COSTS, network=Network(interference=0.16))
    costs.save(tmp_path / "costs.json")
    assert ap.costs.load(tmp_path / "costs.json").network.interference == 0.16


def test_costs_for_different_networks_do_not_join() -> None:
    with pytest.raises(ap.CostError, match="different networks"):
        _ = COSTS | ap.NodeCosts({"a": 1.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", [1]), ("latency", {"l": "x"}), ("network", {"in_flight": 1.5}), ("network", {"interference": -1})],
)
def test_a_file_with_a_malformed_field_is_refused(field: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "costs.json"
    COSTS.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ap.CostError, match="costs.json is malformed"):
        ap.costs.load(path)
