"""A small stage with experts on the ranks of a group, whose stretches are few, for tests that compile it."""

import torch
from torch import Tensor, nn

import annopipe as ap
from annopipe.models.exchange import Group, exchange, exchange_counts, peer_sizes


class SmallMoE(nn.Module):
    """Tokens go to the expert that likes them best, one expert on each rank, any number of them."""

    def __init__(self, width: int, group: Group, ranks: int, rank: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        values = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in (("router", (width, ranks)), ("up", (ranks, width, width)), ("scale", (width,)))
        }
        self.group, self.ranks = group, ranks
        self.router, self.scale = nn.Parameter(values["router"]), nn.Parameter(values["scale"])
        self.up = nn.Parameter(values["up"][rank] / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        with ap.region("norm"):
            y = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.scale
        with ap.region("router"):
            scores = (y @ self.router).softmax(-1)
            weight, choice = scores.max(-1)
            order = choice.argsort(stable=True)
            counts = (choice[:, None] == torch.arange(self.ranks, device=x.device)).sum(0)
            rows = y.index_select(0, order)
        with ap.comm("dispatch"):
            sizes = peer_sizes(counts, exchange_counts(counts, self.group), self.ranks)
            rows = exchange(rows, sizes.send, sizes.recv, sizes.total, self.group)
        with ap.region("experts"):
            hidden = rows @ self.up
            rows = nn.functional.silu(hidden) * rows + hidden.tanh()
        with ap.comm("combine"):
            rows = exchange(rows, sizes.recv, sizes.send, x.shape[0], self.group)
        with ap.region("unpermute"):
            return x + torch.zeros_like(rows).index_copy(0, order, rows) * weight[:, None]
