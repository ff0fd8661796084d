"""Our Triton kernels on the CPU: test_interpreted.py runs this in a process with TRITON_INTERPRET=1."""

import dataclasses

import pytest
import torch
import triton.language as tl
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter

from annopipe.kernels import torch_grouped, torch_rows, triton_grouped, triton_rows
from annopipe.kernels.tiles import MatrixTile, RowTile, matrix_tiles, row_tiles
from annopipe.models.permute import by_expert

ROW_TILE, TILE = RowTile(2, 16, 1), MatrixTile(16, 16, 16, 1, 1)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = ([3, 0, 1, 20], [0, 0, 0, 1], [0, 0, 0, 0], [17], [1, 1, 1, 1, 1])
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
few = settings(deadline=None, max_examples=10, derandomize=True, phases=(Phase.explicit, Phase.generate))


@pytest.fixture(scope="module", autouse=True)
def bfloat16_is_multiplied_as_such():
    """Triton's interpreter (3.7) multiplies the bits of bfloat16 as if they were whole numbers."""
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def wide(self, value):
        return self.cast_impl(value, tl.float32) if value.dtype.scalar == tl.bfloat16 else value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_dot", lambda self, a, b, *more: dot(self, wide(self, a), wide(self, b), *more))
        yield


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def routing(tokens, top_k, experts, seed):
    """The order of slots whose tokens visit experts in a popular half, so that the other half is idle."""
    generator = torch.Generator().manual_seed(seed)
    order, _ = by_expert(torch.randint(0, max(1, experts // 2), (tokens * top_k,), generator=generator), experts)
    return order


def close(found, expected, dtype):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@few
@given(st.integers(0, 9), st.integers(1, 6), st.integers(1, 40), st.sampled_from(DTYPES), st.booleans())
def test_permuting_equals_the_reference(tokens, top_k, width, dtype, weighted):
    order = routing(tokens, top_k, 8, width)
    x, weights = random(tokens, width, dtype=dtype), random(tokens, top_k) if weighted else None
    found = triton_rows.permute(x, weights, order.source, top_k, ROW_TILE)
    expected = torch_rows.permute(x, weights, order.source, top_k)
    if dtype == torch.bfloat16 and weighted:  # the interpreter cuts bits off where a GPU rounds
        close(found, expected, dtype)
    else:
        assert torch.equal(found, expected)


@few
@given(st.integers(0, 9), st.integers(1, 6), st.integers(1, 40), st.sampled_from(DTYPES), st.booleans())
def test_adding_up_weighted_rows_equals_the_reference(tokens, top_k, width, dtype, weighted):
    order = routing(tokens, top_k, 8, width)
    rows, weights = random(tokens * top_k, width, dtype=dtype), random(tokens, top_k) if weighted else None
    found = triton_rows.unpermute(rows, weights, order.target, top_k, ROW_TILE)
    close(found, torch_rows.unpermute(rows, weights, order.target, top_k), dtype)


@few
@given(st.integers(0, 9), st.integers(1, 6), st.integers(1, 600), st.sampled_from(DTYPES))
def test_products_of_rows_equal_the_reference(tokens, top_k, width, dtype):
    order = routing(tokens, top_k, 8, width)
    x, rows = random(tokens, width, dtype=dtype), random(tokens * top_k, width, dtype=dtype)
    found = triton_rows.row_products(x, rows, order.target, top_k, torch.float32)
    expected = torch_rows.row_products(x, rows, order.target, top_k, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_tile_changes_no_bit_of_permuted_and_added_up_rows():
    order = routing(11, 3, 8, 0)
    x, rows, weights = random(11, 70), random(33, 70), random(11, 3)
    permuted = [triton_rows.permute(x, weights, order.source, 3, tile) for tile in (ROW_TILE, *row_tiles())]
    added = [triton_rows.unpermute(rows, weights, order.target, 3, tile) for tile in (ROW_TILE, *row_tiles())]
    assert all(torch.equal(permuted[0], other) for other in permuted[1:])
    assert all(torch.equal(added[0], other) for other in added[1:])


def test_rows_of_any_strides_and_narrow_indices_are_taken():
    order = routing(6, 2, 4, 0)
    x, rows, weights = random(20, 6).t()[:, ::2], random(12, 20)[:, ::2], random(2, 6).t()
    source, target = order.source.int(), order.target.int()
    assert torch.equal(
        triton_rows.permute(x, weights, source, 2, ROW_TILE), torch_rows.permute(x, weights, order.source, 2)
    )
    close(
        triton_rows.unpermute(rows, weights, target, 2, ROW_TILE),
        torch_rows.unpermute(rows, weights, order.target, 2),
        torch.float32,
    )


@few
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 40), st.data())
def test_grouped_products_equal_the_reference(sizes, width_in, width_out, data):
    dtype, sms = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from((0, 1, 3)))
    x, weight = random(sum(sizes), width_in, dtype=dtype), random(len(sizes), width_in, width_out, dtype=dtype)
    counts = torch.tensor(sizes)
    close(triton_grouped.product(x, weight, counts, sms, TILE), torch_grouped.product(x, weight, counts), dtype)


@few
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 40), st.data())
def test_gradients_of_rows_and_weights_equal_the_reference(sizes, width_in, width_out, data):
    dtype, sms = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from((0, 1, 3)))
    x, grad = random(sum(sizes), width_in, dtype=dtype), random(sum(sizes), width_out, dtype=dtype)
    weight, counts = random(len(sizes), width_in, width_out, dtype=dtype).transpose(1, 2), torch.tensor(sizes)
    close(triton_grouped.product(grad, weight, counts, sms, TILE), torch_grouped.product(grad, weight, counts), dtype)
    found = triton_grouped.weight_grad(x, grad, counts, sms, TILE)
    close(found, torch_grouped.weight_grad(x, grad, counts), dtype)
    assert not any(matrix.any() for matrix, size in zip(found, sizes, strict=True) if not size)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_tile_that_may_be_chosen_gives_the_same(dtype, sizes):
    x, weight = random(sum(sizes), 70, dtype=dtype), random(len(sizes), 70, 33, dtype=dtype)
    grad, counts = random(sum(sizes), 33, dtype=dtype), torch.tensor(sizes)
    for tile in matrix_tiles(dtype, "ieee", 9):
        close(triton_grouped.product(x, weight, counts, 5, tile), torch_grouped.product(x, weight, counts), dtype)
        found = triton_grouped.weight_grad(x, grad, counts, 5, tile)
        close(found, torch_grouped.weight_grad(x, grad, counts), dtype)


def test_the_number_of_programs_changes_no_bit():
    sizes = [5, 0, 40, 1]
    x, weight, counts = random(46, 48), random(4, 48, 40), torch.tensor(sizes)
    found = [triton_grouped.product(x, weight, counts, sms, TILE) for sms in (0, 1, 2, 7)]
    grads = [triton_grouped.weight_grad(x, x, counts, sms, TILE) for sms in (0, 1, 2, 7)]
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert all(torch.equal(grads[0], other) for other in grads[1:])


def test_counts_that_claim_more_rows_than_there_are_touch_no_memory_behind_them():
    x, weight, counts = random(20, 16), random(3, 16, 16), torch.tensor([5, 40, 9])
    enough = torch.tensor([5, 15, 0])
    found = triton_grouped.product(x, weight, counts, 0, TILE)
    torch.testing.assert_close(found, torch_grouped.product(x, weight, enough), rtol=1e-5, atol=1e-5)
    grads = triton_grouped.weight_grad(x, x, counts, 0, TILE)
    torch.testing.assert_close(grads, torch_grouped.weight_grad(x, x, enough), rtol=1e-5, atol=1e-5)


def test_a_limit_on_multiprocessors_is_a_limit_on_programs(monkeypatch):
    grids = []

    class Recorded:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *_args, **_options: None

    monkeypatch.setattr(triton_grouped, "product_kernel", Recorded())
    monkeypatch.setattr(triton_grouped, "weight_grad_kernel", Recorded())
    x, counts = random(4096, 256), torch.tensor([4096])
    for sms in (0, 20):
        triton_grouped.product(x, random(1, 256, 4096), counts, sms, dataclasses.replace(TILE))
        triton_grouped.weight_grad(x, random(4096, 4096), counts, sms, TILE)
    assert grids == [(132,), (132,), (20,), (20,)]
