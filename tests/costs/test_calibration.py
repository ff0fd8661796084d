"""What a calibration says of the numbers that were measured, and which ranks exchange with which."""

import dataclasses
from pathlib import Path

import pytest

import annopipe as ap
from annopipe.costs import Calibration, Hardware, Interference, Link
from annopipe.costs.calibrating import ranks_on_each
from annopipe.costs.calibration import described
from annopipe.costs.device_timing import Attained
from annopipe.costs.fitting import Line, fitted
from annopipe.costs.message_timing import Kind, MessageTimes, Where
from annopipe.simulation import Network

OWN = Attained({"float32": 1e12}, 1e11, kernel_launch_s=1e-6, host_read_s=2e-6)
BESIDE = Interference(0.25, 0.5, 1.0, 2.0, ranks=2, transfer_bytes=1 << 20)
SIZES = [1 << power for power in range(10, 27, 2)]


def _times(kind: Kind, where: Where, ranks: int, line: Line, issue_s: float = 0.0) -> MessageTimes:
    seconds = {size: line.seconds(size) for size in SIZES}
    return MessageTimes(kind, where, ranks, seconds, issue_s, fitted(seconds))


def _calibration(per_node: int, *messages: MessageTimes, **more: object) -> Calibration:
    hardware = described("mine", OWN, messages, per_node, BESIDE, in_flight=2)
    fields = {"backend": "gloo", "cores": 8, "ranks_of_cores": 8, "seconds": 20.0, **more}
    return Calibration(hardware, 8, 1 << 30, messages, BESIDE, **fields)  # type: ignore[arg-type]


NODE = (
    _times("send", "inside", 4, Line(1e-5, 1e10)),
    _times("all_to_all", "inside", 4, Line(6e-5, 5e9), issue_s=1e-5),
    _times("all_gather", "inside", 4, Line(8e-5, 5e9)),
)
TWO_NODES = (
    *NODE,
    _times("send", "between", 8, Line(2e-5, 1e9)),
    _times("all_to_all", "between", 8, Line(9e-5, 5e8)),
    _times("all_gather", "between", 8, Line(2e-4, 2e9)),
)


def test_hardware_has_what_was_measured() -> None:
    found = _calibration(4, *TWO_NODES).hardware
    assert (found.name, found.ranks_per_node, found.interference) == ("mine", 4, 0.25)
    assert (found.peak("float32"), found.memory_attained) == (1e12, 1e11)
    for link, line in ((found.inside, Line(1e-5, 1e10)), (found.outside, Line(2e-5, 1e9))):
        assert (link.hop_s, link.attained) == pytest.approx((line.latency_s, line.bandwidth), rel=1e-3)
        assert link.in_collectives == pytest.approx(0.5, rel=1e-3)
    assert found.collective_issue_s == 1e-5
    assert found.collective_start_s == pytest.approx(6e-5 - 1e-5 - 1e-5, rel=1e-3)
    assert found.sources["inside"].startswith("measured: send and receive 10 us + bytes / 1e+04 MB/s")


def test_ranks_that_are_alone_on_their_nodes_have_one_link() -> None:
    found = _calibration(1, *TWO_NODES[3:])
    assert found.crosses_nodes
    assert found.hardware.between is None
    assert found.hardware.inside.attained == pytest.approx(1e9, rel=1e-3)


def test_the_hardware_says_of_messages_what_was_measured() -> None:
    found = _calibration(4, *TWO_NODES)
    ratios = {(each.kind, each.where): found.modelled(each) for each in found.messages}
    assert ratios["send", "inside"] == pytest.approx(1.0, rel=1e-3)
    assert ratios["send", "between"] == pytest.approx(1.0, rel=1e-3)
    assert ratios["all_to_all", "inside"] == pytest.approx(1.0, rel=0.01)
    assert ratios["all_to_all", "between"] == pytest.approx(1.0, rel=0.01)


def test_a_saved_machine_is_read_as_hardware(tmp_path: Path) -> None:
    found = _calibration(4, *TWO_NODES)
    found.save(tmp_path / "out" / "machine.toml")
    assert Hardware.from_toml(tmp_path / "out" / "machine.toml") == found.hardware
    cluster = ap.Cluster.from_toml(tmp_path / "out" / "machine.toml")
    assert (cluster.devices, cluster.memory, cluster.hardware) == (8, 1 << 30, found.hardware)
    assert (tmp_path / "out" / "machine.toml").read_text().splitlines()[:3] == [
        "# measured by annopipe calibrate: 8 ranks over gloo",
        "devices = 8",
        "memory = 1073741824",
    ]
    with pytest.raises(ap.CostError, match="cannot write"):
        found.save(tmp_path)


@pytest.mark.parametrize("hosts", [["a", "a", "b"], ["a", "b", "b"], ["a", "b", "a", "b"], ["a", "b", "b", "a"]])
def test_nodes_that_are_not_alike_are_refused(hosts: list[str]) -> None:
    with pytest.raises(ap.CostError, match="the hosts have different numbers of ranks, or not neighbouring ones .a: "):
        ranks_on_each(hosts)


def test_a_kind_that_was_not_measured_is_refused_with_those_that_were() -> None:
    with pytest.raises(ap.CostError, match="no send between nodes was measured, only send inside, all_to_all inside"):
        _calibration(4, *NODE).of("send", "between")


def test_notes_say_what_a_reader_has_to_know() -> None:
    assert _calibration(4, *NODE).notes == []
    crowded, rough = _calibration(4, *NODE, cores=2), dataclasses.replace(NODE[0], line=Line(0.0, 1.0, residual=0.4))
    assert "8 ranks share 2 cores" in crowded.notes[0]
    assert _calibration(4, *TWO_NODES, cores=4, ranks_of_cores=4).notes == []  # 8 ranks, 4 on each machine
    assert "not tried on several GPUs" in _calibration(4, *NODE, backend="nccl", cores=0).notes[0]
    assert "send inside nodes deviates from latency" in dataclasses.replace(crowded, messages=(rough,)).notes[1]


def test_a_link_gives_collectives_their_share() -> None:
    link = Link(1e9, fraction=0.5, in_collectives=0.5)
    assert (link.attained, link.collective) == (5e8, 2.5e8)
    with pytest.raises(ap.CostError, match="in_collectives is 0: give a positive number"):
        Link(1e9, in_collectives=0)


def test_a_roofline_has_the_network_of_its_hardware() -> None:
    import torch

    graphs = ap.trace(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    network = ap.costs.roofline(graphs.forward, _calibration(4, *NODE).hardware).network
    assert (network.interference, network.in_flight) == (0.25, 2)
    assert ap.costs.roofline(graphs.forward, "h100").network == Network()
