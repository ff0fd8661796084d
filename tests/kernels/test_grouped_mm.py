"""Grouped matrix products: equal to a loop over the experts, zeros for idle experts, two nodes in the backward."""

import pytest
import torch
from torch import nn
from torch.library import opcheck

from annopipe.errors import GraphError
from annopipe.kernels.grouped_mm import grouped_mm, grouped_mm_weight_grad
from tests.models import joint_graph

SIZES = [[2, 3, 1], [0, 6, 0], [6, 0, 0], [0, 0, 6], [0, 0, 0], [1, 0, 0]]


def operands(sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(True)
    weight = torch.randn(len(sizes), 4, 5, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(True)
    return x, weight, torch.tensor(sizes)


def loop(x, weight, counts):
    parts = x.split(counts.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_a_loop_in_value_and_gradients(sizes, dtype):
    x, weight, counts = operands(sizes, dtype)
    ours, theirs = grouped_mm(x, weight, counts), loop(x, weight, counts)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, (x, weight), grad), torch.autograd.grad(theirs, (x, weight), grad), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("sizes", [[8, 3, 0, 5], [0, 0, 16, 0]], ids=str)
def test_kernel_gets_operands_in_its_layout(monkeypatch, sizes):
    x = torch.randn(16, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4, 8, 24, dtype=torch.bfloat16, requires_grad=True)
    counts = torch.tensor(sizes)
    grad = torch.randn(16, 24, dtype=torch.bfloat16)

    def run():
        y = grouped_mm(x, weight, counts)
        return [y, *torch.autograd.grad(y, (x, weight), grad)]

    expected = run()
    monkeypatch.setattr("annopipe.kernels.torch_grouped._has_kernel", lambda x, other: True)
    for a, b in zip(run(), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", [[8, 3, 0, 5], [0, 0, 16, 0]], ids=str)
def test_cuda_equals_the_cpu(sizes, dtype):
    results = []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(16, 8, generator=generator).to(device, dtype).requires_grad_(True)
        weight = torch.randn(4, 8, 24, generator=generator).to(device, dtype).requires_grad_(True)
        y = grouped_mm(x, weight, torch.tensor(sizes, device=device))
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, weight))])
    for on_cpu, on_cuda in zip(*results, strict=True):
        torch.testing.assert_close(on_cuda.cpu(), on_cpu, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_expert_without_rows_gets_exact_zeros(sizes):
    x, weight, counts = operands(sizes)
    grad_x, grad_weight = torch.autograd.grad(grouped_mm(x, weight, counts).sum(), (x, weight))
    for size, matrix in zip(sizes, grad_weight, strict=True):
        assert bool(matrix.any()) == (size > 0)
    assert grad_x.shape == x.shape


@pytest.mark.parametrize("sizes", [[2, 0, 3], [0, 0, 0]], ids=str)
def test_operators_are_registered_correctly(sizes):
    x, weight, counts = operands(sizes)
    opcheck(torch.ops.annopipe.grouped_mm.default, (x, weight, counts))
    grad = torch.randn(x.shape[0], 5, dtype=torch.float64, requires_grad=True)
    opcheck(torch.ops.annopipe.grouped_mm_weight_grad.default, (x, grad, counts))


def test_gradients_are_right_twice():
    x, weight, counts = operands([2, 0, 1])
    assert torch.autograd.gradcheck(lambda x, w: grouped_mm(x, w, counts), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: grouped_mm(x, w, counts), (x, weight))


def test_gradient_that_nobody_needs_is_not_computed():
    x, weight, counts = operands([2, 0, 1])
    y = grouped_mm(x.detach(), weight, counts)
    (grad,) = torch.autograd.grad(y.sum(), weight)
    assert torch.equal(grad, grouped_mm_weight_grad(x.detach(), torch.ones_like(y), counts))


def test_backward_traces_into_one_node_per_gradient():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, 5))

        def forward(self, x):
            return grouped_mm(x, self.weight, torch.tensor([2, 0, 1]))

    graph = joint_graph.trace(Module(), torch.randn(3, 4)).graph
    found = joint_graph.counts(graph)
    assert found["annopipe.grouped_mm.default"] == 2
    assert found["annopipe.grouped_mm_weight_grad.default"] == 1
    assert found[joint_graph.HOST_READ] == 0


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        ((3, 5), [1, 1, 1], r"x \(3, 5\) and counts \(3,\) do not fit a weight of 3 experts that take 4 values"),
        ((3, 4), [1, 2], r"counts \(2,\) do not fit"),
        ((3, 4), [1, 2, 1], r"counts \[1, 2, 1\] add to 4, x has 3 rows"),
        ((3, 4), [5, 0, -2], r"counts \[5, 0, -2\] add to 3, x has 3 rows: give how many rows each expert has"),
        ((3, 4), [1.0, 1.0, 1.0], r"counts is \(3,\) of torch.float32: give int64"),
    ],
)
def test_operands_that_do_not_fit_are_refused(shape, sizes, message):
    with pytest.raises(GraphError, match=r"x \(3, 4\) and grad \(2, 5\) do not fit: both are \[rows, width\]"):
        grouped_mm_weight_grad(torch.randn(3, 4), torch.randn(2, 5), torch.tensor([3]))
    with pytest.raises(GraphError, match=r"weight \(4, 5\) has 2 dimensions: give \[experts, in, out\]"):
        grouped_mm(torch.randn(3, 4), torch.randn(4, 5), torch.tensor([3]))
    with pytest.raises(GraphError, match=r"x is torch.float64 and weight torch.float32: convert one of them"):
        grouped_mm(torch.randn(3, 4).double(), torch.randn(1, 4, 5), torch.tensor([3]))
    with pytest.raises(GraphError, match=message):
        grouped_mm(torch.randn(shape), torch.randn(3, 4, 5), torch.tensor(sizes))


def test_what_is_no_weight_no_counts_or_no_limit_is_refused_for_the_weight_gradient_too():
    x, counts = torch.randn(3, 4), torch.tensor([3])
    for shape in ((4,), (1, 4), (1, 1, 4, 5)):
        with pytest.raises(GraphError, match=r"give \[experts, in, out\]"):
            grouped_mm(x, torch.randn(shape), counts)
    for wrong, message in ((torch.tensor([5, -2]), "add to 3"), (torch.tensor([[3]]), r"counts is \(1, 1\)")):
        with pytest.raises(GraphError, match=message):
            grouped_mm_weight_grad(x, torch.randn(3, 5), wrong)
    for call in (
        lambda: grouped_mm(x, torch.randn(1, 4, 5), counts, -1),
        lambda: grouped_mm_weight_grad(x, x, counts, -1),
    ):
        with pytest.raises(GraphError, match="sms is -1"):
            call()
