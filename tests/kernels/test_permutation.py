"""The row operators: derivatives of each other, equal to plain indexing, refused where shapes do not fit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

from annopipe.errors import GraphError
from annopipe.kernels import permute, row_products, unpermute
from annopipe.models.permute import by_expert, gather_rows


def operands(tokens=4, top_k=3, width=2, seed=0, dtype=torch.float64):
    """Tokens, rows, weights, and the order of slots; some experts are idle."""
    generator = torch.Generator().manual_seed(seed)
    order, _ = by_expert(torch.randint(0, 3, (tokens * top_k,), generator=generator), 5)
    shapes = (tokens, width), (tokens * top_k, width), (tokens, top_k)
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [*(x.to(dtype).requires_grad_() for x in made), order.source, order.target]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 5))
def test_each_equals_a_loop(tokens, top_k, width):
    x, rows, weights, source, target = operands(tokens, top_k, width)
    permuted = permute(x, source, target, top_k, weights)
    added = unpermute(rows, source, target, top_k, weights)
    products = row_products(x, rows, source, target, top_k)
    for token in range(tokens):
        total = torch.zeros(width, dtype=torch.float64)
        for k in range(top_k):
            row = target[token * top_k + k]
            total = total + weights[token, k] * rows[row]
            assert torch.equal(permuted[row], weights[token, k] * x[token])
            torch.testing.assert_close(products[token, k], x[token] @ rows[row])
        torch.testing.assert_close(added[token], total)


@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_right_twice(top_k, weighted):
    x, rows, weights, source, target = operands(top_k=top_k)
    factor = weights if weighted else None
    given = (weights,) if weighted else ()
    calls = (
        (lambda x, *w: permute(x, source, target, top_k, *w), (x, *given)),
        (lambda r, *w: unpermute(r, source, target, top_k, *w), (rows, *given)),
        (lambda x, r: row_products(x, r, source, target, top_k), (x, rows)),
    )
    assert (factor is None) == (not weighted)
    for call, inputs in calls:
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("top_k", [1, 4])
def test_equal_to_gathers_and_a_product_to_the_bit(top_k, dtype):
    x, rows, weights, source, target = operands(6, top_k, 8, dtype=dtype)
    ours = permute(x, source, target, top_k), unpermute(rows, source, target, top_k, weights)
    slots = gather_rows(rows, target, source).view(6, top_k, 8)
    theirs = gather_rows(x, source // top_k, target, top_k), torch.bmm(weights.unsqueeze(1), slots).squeeze(1)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    wanted = [x, rows, weights]
    grads = [torch.randn(a.shape, generator=torch.Generator().manual_seed(1)).to(dtype) for a in ours]
    for a, b in zip(torch.autograd.grad(ours, wanted, grads), torch.autograd.grad(theirs, wanted, grads), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("tokens", [0, 4])
def test_operators_are_registered_correctly(tokens):
    x, rows, weights, source, target = operands(tokens)
    for factor in (None, weights):
        opcheck(torch.ops.annopipe.permute.default, (x, factor, source, target, 3))
        opcheck(torch.ops.annopipe.unpermute.default, (rows, factor, source, target, 3))
    opcheck(torch.ops.annopipe.row_products.default, (x, rows, source, target, 3, torch.float64))


def test_weights_may_be_wider_than_rows_and_get_gradients_of_their_type():
    x, rows, _, source, target = operands(4, 3, 2, dtype=torch.bfloat16)
    weights = torch.rand(4, 3, requires_grad=True)
    permuted, added = permute(x, source, target, 3, weights), unpermute(rows, source, target, 3, weights)
    assert (permuted.dtype, added.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.autograd.grad(added.float().sum(), weights)[0].dtype == torch.float32
    assert row_products(x, rows, source, target, 3, torch.float32).dtype == torch.float32


def test_gradient_that_nobody_needs_is_not_computed():
    x, rows, weights, source, target = operands()
    assert torch.autograd.grad(permute(x.detach(), source, target, 3, weights).sum(), weights)[0].shape == (4, 3)
    assert torch.autograd.grad(unpermute(rows, source, target, 3, weights.detach()).sum(), rows)[0].shape == (12, 2)


def test_operands_that_do_not_fit_are_refused():
    x, rows, weights, source, target = (value.detach() for value in operands())
    with pytest.raises(GraphError, match=r"permute: \(4, 2\), source \(11,\) and target \(12,\) do not fit top_k = 3"):
        permute(x, source[1:], target, 3)
    with pytest.raises(
        GraphError, match=r"unpermute: \(12, 2\), source \(12,\) and target \(12,\) do not fit top_k = 5"
    ):
        unpermute(rows, source, target, 5)
    with pytest.raises(GraphError, match=r"unpermute: weights \(3, 3\) do not fit 12 slots: give \[tokens, top_k\]"):
        unpermute(rows, source, target, 3, weights[1:])
    with pytest.raises(GraphError, match=r"permute: weights \(3, 4\) do not fit 12 slots: give \[tokens, top_k\]"):
        permute(x, source, target, 3, weights.T)
    assert torch.equal(permute(x, source, target, 3, weights.flatten()), permute(x, source, target, 3, weights))
    with pytest.raises(GraphError, match=r"row_products: x \(3, 2\) .* does not fit rows \(12, 2\)"):
        row_products(x[1:], rows, source, target, 3)
