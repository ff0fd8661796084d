"""The local machine is measured once, quickly, and not at all where there is a GPU."""

import pytest
import torch

import annopipe as ap
from annopipe.costs.local_machine import local_hardware, measured_cpu
from annopipe.costs.machines import MACHINES


def test_the_processor_is_measured_once() -> None:
    machine = measured_cpu()
    assert machine is measured_cpu()
    assert machine.sources["peak_flops"] == "measured here"
    assert min(machine.peak(dtype) for dtype in ("float32", "float64", "bfloat16")) > 0
    assert machine.outside is machine.inside, "no other node is known"


def test_measuring_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    measured_cpu.__wrapped__()
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_gpu_the_processor_is_the_local_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert local_hardware() is measured_cpu()


def test_a_gpu_is_looked_up_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert local_hardware() is MACHINES["h200"]
    assert local_hardware(cpu=True) is measured_cpu()


def test_a_gpu_that_the_table_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Fast GPU 1")
    with pytest.raises(ap.CostError, match="has no 'Fast GPU 1', only a100, h100"):
        local_hardware()
