"""Loops over the experts that got a token: traced where that is proved right, refused where not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf, plain

EXPERTS = 2
Combine = Callable[[Any, Tensor, Tensor, Tensor, Tensor], Tensor]


def moe(combine: Combine) -> Function:
    """A router, then ``combine(self, x, weights, mask, out)``."""

    def forward(self: Any, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(1)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        return combine(self, x, weights, mask, torch.zeros_like(x))

    return Function(forward, gate=nn.Linear(4, EXPERTS), experts=nn.ModuleList(nn.Linear(4, 4) for _ in range(EXPERTS)))


def add(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor, expert: Any) -> Tensor:
    """One turn as most models have it."""
    slot, token = torch.where(mask[expert].squeeze(0))
    return out.index_add_(0, token, self.experts[expert](x[token]) * weights[token, slot, None])


def as_most_models_write_it(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((-1, -2)).gt(0).nonzero():
        add(self, x, weights, mask, out, expert)
    return out


def flattened(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((1, 2)).nonzero().squeeze(-1):
        slot, token = torch.where(mask[expert])
        out = out.index_add(0, token, self.experts[expert](x[token]) * weights[token, slot, None])
    return out


def sliced_and_written(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    hit = torch.greater(mask.sum((1, 2)), 0).nonzero()
    for expert in hit[:]:
        slot, token = torch.where(mask[expert][0])
        out[token] += self.experts[expert](x[token]) * weights[token, slot, None]
    return out


def with_dropout(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((1, 2)).gt(0).nonzero():
        slot, token = torch.where(mask[expert].squeeze(0))
        out.index_add_(0, token, F.dropout(self.experts[expert](x[token]), 0.3) * weights[token, slot, None])
    return out


@pytest.mark.parametrize("combine", [as_most_models_write_it, flattened, sliced_and_written, with_dropout])
def test_one_trace_is_equal_for_every_routing(combine: Combine) -> None:
    module = moe(combine)
    graphs = ap.trace(module, (leaf(5, 4),))
    for bias in ([0.0, 0.0], [9.0, 0.0], [0.0, 9.0]):  # both experts, and one alone
        with torch.no_grad():
            module.gate.bias.copy_(torch.tensor(bias))
        check_against_eager(module, (leaf(5, 4),), graphs=graphs, idle=True)


def test_a_trace_without_gradients_is_proved_too() -> None:
    module = moe(as_most_models_write_it).requires_grad_(False)
    graphs = check_against_eager(module, (plain(5, 4),))
    assert graphs.backward is None
    with pytest.raises(CaptureError, match="is used after a turn"):
        ap.trace(moe(changes_every_row).requires_grad_(False), (plain(5, 4),))


def test_what_says_which_rows_are_hit_is_not_in_the_graph() -> None:
    graphs = ap.trace(moe(as_most_models_write_it), (leaf(5, 4),))
    targets = [node.target for node in graphs.forward.graph.nodes]
    assert targets.count(torch.ops.aten.nonzero.default) == EXPERTS
    assert torch.ops.aten.gt.Scalar not in targets


def changes_every_row(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((1, 2)).gt(0).nonzero():
        out = add(self, x, weights, mask, out, expert) + 1
    return out


def hit_by_two_or_more(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((1, 2)).gt(1).nonzero():
        add(self, x, weights, mask, out, expert)
    return out


def hit_by_something_else(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for row in (x.sum(1) > 0).nonzero():
        out = out + x[row]
    return out


def signed_mask(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    signed = mask - mask.flip(0)
    for expert in signed.sum((1, 2)).gt(0).nonzero():
        add(self, x, weights, signed, out, expert)
    return out


def another_row(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for _ in mask.sum((1, 2)).gt(0).nonzero():
        add(self, x, weights, mask, out, torch.tensor([0]))
    return out


def draws_in_every_turn(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((1, 2)).gt(0).nonzero():
        add(self, x, weights, mask, out, expert)
        torch.rand(3)
    return out


def counts_turns(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    turns = 0
    for expert in mask.sum((1, 2)).gt(0).nonzero():
        add(self, x, weights, mask, out, expert)
        turns += 1
    return out * turns


def collects(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for expert in mask.sum((1, 2)).gt(0).nonzero():
        parts.append(x * expert)
    return torch.stack(parts).sum(0)


def numbers_turns(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for _, expert in enumerate(mask.sum((1, 2)).gt(0).nonzero()):
        add(self, x, weights, mask, out, expert)
    return out


def counts_in_a_comprehension(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    return x * len([1 for _ in mask.sum((1, 2)).gt(0).nonzero()])


def leaves_early(self: Any, x: Tensor, weights: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    for expert in mask.sum((1, 2)).gt(0).nonzero():
        add(self, x, weights, mask, out, expert)
        if expert == 1:
            break
    return out


@pytest.mark.parametrize(
    ("combine", "reason"),
    [
        (changes_every_row, "the result of aten.add.Tensor is used after a turn, also of one without rows"),
        (hit_by_two_or_more, "which rows are hit is not told by the sums of a mask of zeros and ones"),
        (hit_by_something_else, "which rows are hit is not told by the sums of a mask of zeros and ones"),
        (signed_mask, "which rows are hit is not told by the sums of a mask of zeros and ones"),
        (another_row, "the result of aten.index_add.default is used after a turn"),
        (draws_in_every_turn, "aten.rand.default has an effect in every turn"),
        (counts_turns, "changes turns in every turn"),
        (collects, "changes parts in every turn"),
        (numbers_turns, r"does more with it than a for loop \(enumerate, zip, list or a comprehension\)"),
        (counts_in_a_comprehension, "does more with it than a for loop"),
        (leaves_early, "leaves it before its end"),
    ],
)
def test_a_loop_without_a_proof_is_refused_with_its_line(combine: Combine, reason: str) -> None:
    name = combine.__name__
    with pytest.raises(
        CaptureError, match=rf"forward loops over .* {reason}.*\n  at .*test_hit_loops.py:\d+, in {name}"
    ):
        ap.trace(moe(combine), (leaf(5, 4),))
