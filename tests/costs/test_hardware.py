"""Descriptions of hardware: the table, files, and what is refused."""

import dataclasses
from pathlib import Path

import pytest

import annopipe as ap
from annopipe.costs import Hardware, Link
from annopipe.costs.machines import MACHINES, machine_of
from tests.costs.toy import TOY

FILE = """
name = "mine"
memory_bandwidth = 3e12
ranks_per_node = 4
[peak_flops]
bfloat16 = 9e14
[inside]
bandwidth = 4e11
hop_s = 1e-6
[between]
bandwidth = 5e10
[sources]
inside = "measured"
"""


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "h800", "b200"])
def test_every_machine_names_the_source_of_its_peaks_and_bandwidths(name: str) -> None:
    machine = ap.costs.machine(name)
    assert {"peak_flops", "memory_bandwidth", "inside", "between"} <= machine.sources.keys()
    assert machine.sources.keys() <= {field.name for field in dataclasses.fields(Hardware)}
    assert {"float32", "float64", "bfloat16"} <= machine.peak_flops.keys()
    assert machine.inside.attained > machine.outside.attained
    assert ap.costs.machine(name.upper()) is machine


def test_an_unknown_machine_is_refused_with_the_names() -> None:
    with pytest.raises(ap.CostError, match="no 'cpu', which is measured where hardware='cpu' is given"):
        ap.costs.machine("cpu")
    with pytest.raises(ap.CostError, match="no hardware 'h1000': the names are a100, h100, h200, h800, b200 and cpu"):
        ap.costs.machine("h1000")


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpu_is_found_by_its_drivers_name_unless_it_is_a_slower_variant(driver: str, name: str | None) -> None:
    assert machine_of(driver) is (None if name is None else MACHINES[name])


def test_a_file_describes_hardware(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    found = Hardware.from_toml(path)
    assert found == Hardware(
        name="mine",
        memory_bandwidth=3e12,
        ranks_per_node=4,
        peak_flops={"bfloat16": 9e14},
        inside=Link(4e11, hop_s=1e-6),
        between=Link(5e10),
        sources={"inside": "measured"},
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[peak_flops]", "[peak_flops", "cannot read hardware from"),
        ("memory_bandwidth", "memory_bandwith", "does not describe hardware.*memory_bandwith.*the fields are name,"),
        ("hop_s", "hops", "does not describe hardware.*hops"),
        ("[inside]", "inside = 3\n[other]", "does not describe hardware"),
        ("3e12", "-1.0", "cluster.toml: hardware 'mine': memory_bandwidth is -1.0: give a positive number"),
        ("9e14", '"fast"', "cluster.toml: hardware 'mine': peak_flops is .*give FLOP/s by data type"),
    ],
)
def test_a_malformed_file_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ap.CostError, match=message):
        Hardware.from_toml(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ap.CostError, match="cannot read hardware from"):
        Hardware.from_toml(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("matmul_fraction", 1.5, "a share of a peak"),
        ("compute_share", 0, "a share of a peak"),
        ("memory_fraction", True, "a share of a peak"),
        ("host_read_s", -1e-6, "seconds, not negative"),
        ("kernel_launch_s", float("nan"), "seconds, not negative"),
        ("memory_bandwidth", float("inf"), "a positive number"),
        ("ranks_per_node", 0, "ranks_per_node is 0: give a number"),
        ("in_flight", 0, "in_flight is 0: give a number"),
        ("interference", -0.1, "interference is -0.1: give a share, not negative"),
        ("peak_flops", {}, "give FLOP/s by data type"),
    ],
)
def test_a_number_that_cannot_be_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        dataclasses.replace(TOY, **{field: value})


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(ap.CostError, match="Link: bandwidth is 0: give a positive number"):
        Link(0)


def test_a_peak_is_scaled_by_what_is_attained_and_by_the_multiprocessors_left() -> None:
    half = dataclasses.replace(TOY, compute_share=0.5)
    assert half.peak("float32") == 0.5e12
    assert half.peak("bfloat16", attention=True) == 1e12
    assert TOY.peak("float16") == TOY.peak("bfloat16"), "one stands for the other"


def test_hardware_keeps_its_own_tables() -> None:
    peaks = {"float32": 1e12}
    machine = dataclasses.replace(TOY, peak_flops=peaks)
    peaks["float32"] = 0.0
    assert machine.peak("float32") == 1e12
