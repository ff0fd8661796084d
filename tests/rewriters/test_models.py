"""Miniature models of each real shape: tagged, they compute the same bits, and their nodes are in the right regions."""

import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import annopipe as ap
from rewriters import Settings, rewrite
from tests.cli.running import Result

FOLDER = Path(__file__).parent / "models"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def loaded(name: str, data: bytes) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(data, f"{name}.py", "exec"), module.__dict__)
    return module


def tagged(name: str) -> bytes:
    before = (FOLDER / f"{name}.py").read_bytes()
    result = rewrite(before)
    assert result.error == ""
    assert rewrite(result.after, Settings(select=("AP301",))).after == before
    return result.after


def run(module: types.ModuleType) -> list[Any]:
    """What a model returns, and all gradients."""
    torch.manual_seed(0)
    model, args = module.build()
    args = tuple(a.clone().requires_grad_() for a in args)
    outputs = model(*args)
    total = sum(o.sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,)))
    total.backward()
    return [outputs, [a.grad for a in args], [p.grad for p in model.parameters()]]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_the_same_bits(name: str) -> None:
    before = run(loaded(name, (FOLDER / f"{name}.py").read_bytes()))
    after = run(loaded(name, tagged(name)))
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_each_node_is_in_the_region_of_its_call(name: str) -> None:
    module = loaded(name, tagged(name))
    model, args = module.build()
    graphs = ap.trace(model, tuple(a.requires_grad_() for a in args))
    rows = ap.region_table(graphs.forward)
    for operation, region in module.EXPECTED.items():
        named = [
            row for row in rows if row.node.op == "call_function" and row.node.name.strip("_").startswith(operation)
        ]
        found = {row.region if row.rule == "tag" else "" for row in named}
        assert found == {region}, operation
    launches = [row.region for row in rows if row.kind == "launch"]
    assert launches == getattr(module, "LAUNCHES", [])
    assert graphs.backward is not None
    regions = {row.region for row in ap.region_table(graphs.backward)}
    assert {region for region in module.EXPECTED.values() if region} <= regions


def test_inspect_shows_the_regions_of_a_rewritten_model(annopipe: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(tagged("steps"))
    dist.destroy_process_group()
    result = annopipe("inspect", f"{tmp_path / 'model.py'}:build", "--graph", "forward", "--json")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rows = json.loads(result.stdout)["forward"]
    assert {"router", "dispatch", "experts", "combine", "shared"} <= {row["region"] for row in rows}
    assert {row["rule"] for row in rows if row["region"] == "experts"} == {"tag"}
