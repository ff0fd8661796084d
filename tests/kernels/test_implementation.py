"""Who computes: kernels on a GPU for three types, PyTorch elsewhere."""

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.kernels import has_kernels, implementation


class OnGPU:
    """What is asked of a tensor on a GPU that is not here."""

    def __init__(self, dtype=torch.bfloat16):
        self.device, self.dtype = torch.device("cuda", 0), dtype


def test_kernels_take_three_types_on_a_gpu_and_nothing_elsewhere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(implementation, "_HAS_TRITON", True)
    assert all(has_kernels(OnGPU(dtype), None) for dtype in (torch.bfloat16, torch.float16, torch.float32))
    assert not has_kernels(OnGPU(torch.float64))
    assert not has_kernels(OnGPU(), OnGPU(torch.float64))
    assert not has_kernels(torch.ones(1))
    assert not has_kernels(torch.ones(1, device="meta"))
    monkeypatch.setattr(implementation, "_HAS_TRITON", False)
    assert not has_kernels(OnGPU())


@pytest.mark.parametrize(("major", "taken"), [(7, False), (8, True), (12, True)])
def test_kernels_need_capability_8(monkeypatch, major, taken):
    class Properties:
        pass

    Properties.major = major
    monkeypatch.setattr(implementation, "_HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    assert has_kernels(OnGPU()) == taken


def test_the_question_traces_strictly():
    class Asks(nn.Module):
        def forward(self, x):
            return x * 2 if has_kernels(x) else x * 3

    graphs = ap.trace(Asks(), (torch.ones(2, requires_grad=True),), strict=True)
    assert torch.equal(graphs.forward({"input.x": torch.ones(2)})["output"], torch.full((2,), 3.0))
