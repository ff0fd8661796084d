"""What real ranks over gloo measure alike on all of them: interference, a machine that they share, layers."""

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import annopipe as ap
from annopipe.costs import Interference
from annopipe.simulation import Network
from benchmarks.launch import run_ranks

FOUND = Interference(0.1, 0.5, 2.0, 3.0, ranks=4, transfer_bytes=1 << 20)
PROGRAM = """
    import json, dataclasses, torch, torch.distributed as dist, annopipe as ap
    from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
    from benchmarks.launch import end_rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.group.WORLD
    found = ap.costs.measure_interference(world, repeat=1)
    stage = DeepSeekV3Stage(DeepSeekV3Config.tiny(), layers=[1], group=world)
    graphs = ap.trace(stage, (torch.zeros(1, 8, 32, requires_grad=True),))
    options = [{"hardware": "h800"}, {"group": world}, {"hardware": "cpu", "group": world}]
    costs = [ap.costs.roofline(graphs.backward, **each) for each in options]
    refused = []
    for option in ({"ranks_per_node": 0}, {"largest_bytes": 4096}):
        try:
            ap.costs.calibrate(**option)
        except ap.CostError as error:
            refused.append(str(error))
    machine = ap.costs.calibrate(name="lab", largest_bytes=1 << 24)
    layers = ap.costs.measure_layers([stage, torch.nn.Linear(32, 4)], torch.zeros(1, 8, 32), group=world, repeat=1)
    rest = [machine.plain(), machine.to_toml(), [dataclasses.asdict(layer) for layer in layers], refused]
    print(json.dumps([dataclasses.asdict(found), [dataclasses.asdict(each) for each in costs], *rest]))
    dist.barrier()
    end_rank()
"""


def test_ranks_measure_and_cost_alike(tmp_path) -> None:
    (tmp_path / "interference_program.py").write_text(textwrap.dedent(PROGRAM))
    outputs = run_ranks("interference_program", 2, env={"PYTHONPATH": str(tmp_path)}, timeout_s=400)
    assert outputs[0] == outputs[1]
    values = json.loads(outputs[0])
    found = Interference(**values[0])
    assert found.ranks == 2
    assert found.transfer_bytes >= 1 << 20
    assert all(share >= 0 for share in dataclasses.astuple(found)[:4])
    ap.NodeCosts({}, network=found.network())
    _check_machine(values[2], values[3], tmp_path / "machine.toml")
    _check_layers(values[4])
    assert values[5] == [
        "ranks_per_node=0: give a number that divides the 2 ranks into equal nodes",
        "largest_bytes=4096: give 65536 or more, for 4 sizes",
    ]


def _check_machine(plain: dict[str, Any], text: str, path: Path) -> None:
    assert [(each["kind"], each["where"], each["ranks"]) for each in plain["messages"]] == [
        ("send", "inside", 2),
        ("all_to_all", "inside", 2),
        ("all_gather", "inside", 2),
    ]
    path.write_text(text)
    found = ap.costs.Hardware.from_toml(path)
    assert dataclasses.asdict(found) == plain["hardware"]
    assert (found.name, found.ranks_per_node, found.between, plain["backend"]) == ("lab", 2, None, "gloo")
    line = plain["messages"][0]["line"]
    assert (found.inside.bandwidth, found.inside.hop_s) == (line["bandwidth"], line["latency_s"])
    assert (plain["devices"], plain["memory"] > 2**20) == (2, True)
    assert 1 <= found.in_flight <= 4


def _check_layers(layers: list[dict[str, Any]]) -> None:
    moe, last = layers
    assert moe["comm"] > 0 == last["comm"]
    assert min(moe["F"], moe["W"], last["F"], last["I"], last["W"]) > 0
    assert (moe["output"], last["output"]) == (8 * 32 * 4, 8 * 4 * 4)
    assert last["parameters"] == 2 * (32 * 4 + 4) * 4, "with their gradients"


def test_the_network_takes_the_share_of_each_kind_of_computation() -> None:
    assert FOUND.network().interference == pytest.approx(0.1)
    assert FOUND.network(memory_share=0.25).interference == pytest.approx(0.2)
    assert FOUND.network(Network(in_flight=2)).in_flight == 2
    with pytest.raises(ap.CostError, match="memory_share is 1.5: give a share"):
        FOUND.network(memory_share=1.5)


def test_measuring_without_ranks_is_refused() -> None:
    with pytest.raises(ap.CostError, match="call init_process_group on all ranks first"):
        ap.costs.measure_interference()
    with pytest.raises(ap.CostError, match="call init_process_group on all ranks, or annopipe calibrate"):
        ap.costs.calibrate()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ap.CostError, match="on a group of 1.*a transfer needs 2 ranks"):
            ap.costs.measure_interference()
        with pytest.raises(ap.CostError, match="calibrate on one rank: links are measured between 2 ranks or more"):
            ap.costs.calibrate()
    finally:
        dist.destroy_process_group()
