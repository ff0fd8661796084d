"""The roofline benchmark shows the published layer, and explains what is off by more than a factor of two."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from annopipe.cli.roofline import command
from benchmarks.roofline import ACCOUNTS, PUBLISHED_US

PROFILE = Path(__file__).parents[1] / "ordering" / "golden" / "deepseek_v3_pair.json"


def test_the_published_times_are_those_of_the_profile() -> None:
    layers = json.loads(PROFILE.read_text())["layers_us"]
    for component, times in PUBLISHED_US.items():
        assert times == tuple(layer[component] for layer in layers)
    assert set(ACCOUNTS) == set(PUBLISHED_US)


def test_a_published_layer_has_a_row_for_every_component_and_an_account_where_it_is_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    result = CliRunner().invoke(command, ["--layers", "1", "--json", str(path)], catch_exceptions=False)
    rows = {row["component"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows.keys() == PUBLISHED_US.keys()
    for name, row in rows.items():
        ratio = row["as_run_ms"] / row["published_ms"]
        assert 1 / 3 < ratio < 3, name
        assert bool(row["account"]) == (not 0.5 <= ratio <= 2)
        assert row["account"] in " ".join(result.output.split())
        assert name in result.output
    computed = [name for name in rows if name.startswith(("attn", "mlp"))]
    assert sum(rows[n]["as_run_ms"] for n in computed) == pytest.approx(
        sum(rows[n]["published_ms"] for n in computed), rel=0.35
    )
