"""The gated feed-forward against its formula."""

import torch

from annopipe.models.layers import SwiGLU


def test_equals_its_formula():
    layer = SwiGLU(4, 6, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64)
    gate, up = x @ layer.gate.weight.t(), x @ layer.up.weight.t()
    expected = (gate / (1 + (-gate).exp()) * up) @ layer.down.weight.t()
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
