"""The planning benchmark's graph is a chain of real blocks, and its table has a row for every policy."""

import json

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

import annopipe as ap
from annopipe.cli.planning import command
from annopipe.graphs.stage_graph import body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from benchmarks.planning import chained


def test_every_policy_has_a_row() -> None:
    result = CliRunner().invoke(command, ["--nodes", "300", "--rounds", "1", "--json"], catch_exceptions=False)
    found = json.loads(result.output)
    assert found["nodes"] >= 300
    assert set(found["seconds"]) == set(ap.policies()) - {"torch", "optimal"}


def test_a_policy_can_be_named() -> None:
    options = ["--nodes", "300", "--rounds", "1", "--policy", "alternate", "--json"]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    assert set(json.loads(result.output)["seconds"]) == {"alternate"}


def test_a_chained_graph_computes_the_block_applied_again() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        stage, x = DeepSeekV3Stage(DeepSeekV3Config.tiny(), layers=[0], group=dist.group.WORLD), torch.randn(1, 4, 32)
        graphs = ap.trace(stage, (x,))
        twice = chained(graphs.forward, 2, "output", "input.x")
        found = twice({**graphs.bind(stage), "input.x": x})
        with torch.no_grad():
            assert torch.equal(found["1.output"], stage(stage(x)))
        assert len(body(twice.graph)) == 2 * len(body(graphs.forward.graph))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("nodes", ["0", "many"])
def test_a_size_that_is_no_size_is_refused(nodes: str) -> None:
    assert CliRunner().invoke(command, ["--nodes", nodes]).exit_code == 2
