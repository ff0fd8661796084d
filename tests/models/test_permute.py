"""Orders of rows by expert against sorting in Python, and the gather against plain indexing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.models.permute import by_expert, gather_rows, regroup


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), max_size=20))
def test_slots_are_sorted_by_expert_and_keep_their_order(experts):
    order, counts = by_expert(torch.tensor(experts, dtype=torch.int64), 6)
    expected = sorted(range(len(experts)), key=lambda slot: (experts[slot], slot))
    assert order.source.tolist() == expected
    assert [order.source.tolist()[i] for i in order.target.tolist()] == list(range(len(experts)))
    assert counts.tolist() == [experts.count(e) for e in range(6)]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_rows_by_rank_become_rows_by_expert(ranks, local, data):
    counts = [[data.draw(st.integers(0, 3)) for _ in range(local)] for _ in range(ranks)]
    arrived = [(e, r, i) for r in range(ranks) for e in range(local) for i in range(counts[r][e])]
    order = regroup(torch.tensor(counts), len(arrived))
    assert [arrived[i] for i in order.source.tolist()] == sorted(arrived)
    assert [sorted(arrived)[i] for i in order.target.tolist()] == arrived


@pytest.mark.parametrize("copies", [1, 3])
def test_gather_equals_indexing_in_value_and_gradients(copies):
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    slots = torch.randperm(4 * copies, generator=torch.Generator().manual_seed(0))
    index, back = slots // copies, slots.argsort()
    ours = gather_rows(x, index, back, copies)
    assert torch.equal(ours, x[index])
    assert torch.autograd.gradcheck(lambda x: gather_rows(x, index, back, copies), (x,))
    assert torch.autograd.gradgradcheck(lambda x: gather_rows(x, index, back, copies) ** 2, (x,))


def test_gather_of_no_rows_is_empty():
    none = torch.empty(0, dtype=torch.int64)
    x = torch.empty(0, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(gather_rows(x, none, none, 3).sum(), x)
    assert grad.shape == (0, 2)
