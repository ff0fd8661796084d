from typing import Any

import pytest
import torch
from torch import nn

import annopipe as ap


class Balanced(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        y = self.inner(x)
        ap.auxiliary_loss(y.square().mean())
        ap.auxiliary_loss(y.abs().mean())
        return torch.tanh(y)


def test_nothing_happens_where_nobody_collects():
    assert Balanced()(torch.ones(2, 3)).shape == (2, 3)


def test_inner_collections_are_apart_from_outer_ones():
    with ap.auxiliary_losses() as outer:
        Balanced()(torch.ones(2, 3))
        with ap.auxiliary_losses() as inner:
            Balanced()(torch.ones(2, 3))
    assert len(outer) == len(inner) == 2


@pytest.mark.parametrize(("value", "match"), [(torch.ones(2), r"a tensor of shape \(2,\)"), (1.0, "got float")])
def test_only_scalar_tensors_are_auxiliary_losses(value, match):
    with pytest.raises(ap.GraphError, match=match):
        ap.auxiliary_loss(value)


@pytest.mark.parametrize("loss_fn", [None, nn.functional.mse_loss])
def test_their_sum_is_an_output_of_a_traced_stage_with_a_tangent(loss_fn: Any) -> None:
    torch.manual_seed(0)
    module, x = Balanced(), torch.randn(2, 3)
    target = torch.zeros(2, 3) if loss_fn else None
    graphs = ap.trace(module, (x,), None, loss_fn, target)
    targets = {"target": target} if loss_fn else {}
    values = graphs.bind(module) | graphs.bind_inputs(x, **targets)
    values |= graphs.forward(values)
    with ap.auxiliary_losses() as found:
        output = module(x)
    total = sum(found) * 0.5
    torch.testing.assert_close(values["auxiliary_loss"], sum(found).detach(), rtol=0, atol=0)
    torch.testing.assert_close(graphs.result(values), output.detach(), rtol=0, atol=0)
    values["tangent.auxiliary_loss"] = torch.tensor(0.5)
    if loss_fn is not None:
        values["tangent.loss"] = torch.tensor(1.0)
        total = total + loss_fn(output, target)
    else:
        values["tangent.output"] = torch.ones(2, 3)
        total = total + output.sum()
    total.backward()
    assert graphs.backward is not None
    gradients = graphs.parameter_gradients(graphs.backward(values))
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_strict_tracing_refuses_them():
    with pytest.raises(ap.CaptureError, match="auxiliary_loss"):
        ap.trace(Balanced(), (torch.ones(2, 3),), strict=True)
    with ap.auxiliary_losses() as found:
        Balanced()(torch.ones(2, 3))
    assert found  # and after that they are collected again
