"""Clusters: what files say, and what is refused."""

from pathlib import Path

import pytest

import annopipe as ap
from annopipe.costs import Hardware

HARDWARE = """
[hardware]
name = "mine"
memory_bandwidth = 3e12
peak_flops = { bfloat16 = 9e14 }
inside = { bandwidth = 4e11 }
"""


def read(folder: Path, text: str) -> ap.Cluster:
    path = folder / "ours.toml"
    path.write_text(text, encoding="utf-8")
    return ap.Cluster.from_toml(path)


def test_a_cluster_of_known_machines(tmp_path: Path) -> None:
    cluster = read(tmp_path, 'devices = 16\nmemory = 80e9\nmachine = "h100"')
    assert cluster == ap.Cluster(16, ap.costs.machine("h100"), 80e9, "ours")
    assert cluster.nodes == 2


def test_numbers_of_a_known_machine_may_differ_and_the_others_stay(tmp_path: Path) -> None:
    text = (
        'name = "x"\ndevices = 8\nmemory = 80e9\nmachine = "h100"\n[overrides]\nranks_per_node = 4\n'
        "[overrides.between]\nbandwidth = 25e9\n[overrides.peak_flops]\nbfloat16 = 1e14"
    )
    known, ours = ap.costs.machine("h100"), read(tmp_path, text).hardware
    assert ours.between is not None
    assert known.between is not None
    assert (ours.ranks_per_node, ours.between.bandwidth, ours.between.fraction) == (4, 25e9, known.between.fraction)
    assert ours.peak_flops == {**known.peak_flops, "bfloat16": 1e14}
    assert ours.inside == known.inside


def test_hardware_may_be_described(tmp_path: Path) -> None:
    cluster = read(tmp_path, f"devices = 4\nmemory = 1e9\n{HARDWARE}")
    assert isinstance(cluster.hardware, Hardware)
    assert cluster.hardware.inside.bandwidth == 4e11


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory = 1e9", "has no devices"),
        ('devices = 8\nmachine = "h100"', "has no memory"),
        ("devices = 8\nmemory = 1e9", "neither machine nor"),
        (f'devices = 8\nmemory = 1e9\nmachine = "h100"\n{HARDWARE}', "both machine and"),
        ('devices = 8\nmemory = 1e9\nmachine = "h1"', "there is no hardware 'h1': the names are a100"),
        ('device = 8\nmemory = 1e9\nmachine = "h100"', "no field 'device'; it has name, devices"),
        ('devices = 0\nmemory = 1e9\nmachine = "h100"', "devices is 0: give a whole number"),
        ('devices = 8\nmemory = -1\nmachine = "h100"', "memory is -1: give the bytes"),
        ('devices = 12\nmemory = 1e9\nmachine = "h100"', "12 devices do not fill nodes of 8"),
        ('devices = 8\nmemory = 1e9\nmachine = "h100"\n[overrides]\nspeed = 1', "no field 'speed'"),
        ('devices = 8\nmemory = 1e9\nmachine = "h100"\noverrides = 4', "overrides.* is 4: give a table"),
        ('devices = 8\nmemory = 1e9\nmachine = "h100"\n[overrides]\ninside = 4', "inside is 4: give a table"),
        ('devices = 8\nmemory = 1e9\nmachine = "h100"\n[overrides.inside]\nrate = 4', "no field 'rate'"),
        ('devices = 8\nmemory = 1e9\n[hardware]\nname = "x"', r"\[hardware\] has no peak_flops"),
        (f"devices = 8\nmemory = 1e9\n{HARDWARE}[hardware.between]\nhop_s = 0.0", "between has no bandwidth"),
        (f"devices = 8\nmemory = 1e9\noverrides = {{}}\n{HARDWARE}", r"\[overrides\] beside \[hardware\]"),
        ("devices = ", "is not TOML"),
    ],
)
def test_what_is_no_cluster_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ap.CostError, match=message) as caught:
        read(tmp_path, text)
    assert "ours.toml" in str(caught.value)


def test_a_file_that_is_not_there_and_hardware_that_is_none() -> None:
    with pytest.raises(ap.CostError, match=r"nowhere\.toml: No such file"):
        ap.Cluster.from_toml("nowhere.toml")
    with pytest.raises(ap.CostError, match="hardware is 'h100': give an annopipe.costs.Hardware"):
        ap.Cluster(8, "h100", 1e9)  # type: ignore[arg-type]


def test_the_link_of_a_group_is_that_between_nodes_when_it_leaves_one() -> None:
    cluster = ap.Cluster(16, ap.costs.machine("h100"), 80e9)
    assert cluster.link(8) == cluster.hardware.inside
    assert cluster.link(16) == cluster.hardware.between
