"""Random modules, made of what modules do: their graphs are equal to eager bit by bit, whatever the sizes."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe.errors import CaptureError
from tests.graphs.helpers import Eager, check_against_eager

Step = Callable[["RandomModule", Tensor, Tensor, Tensor], Tensor]


def in_place(_: "RandomModule", a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
    z = a.clone()
    z[1] *= 2
    return z.add_(b.detach())


def without_gradient(_: "RandomModule", a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
    with torch.no_grad():
        scaled = a.mean() * b
    return scaled + a


def counted(self: "RandomModule", a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
    z = a * self.count
    with torch.no_grad():
        self.count.add_(b.detach().mean())
    return z


def split(_: "RandomModule", a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
    first, second = a.split(counts.tolist())
    return torch.cat([torch.sin(second), first * 2]) + b.sum()


STEPS: list[Step] = [
    in_place,
    without_gradient,
    counted,
    split,
    lambda self, a, b, _: a @ self.w,
    lambda self, a, b, _: self.linear(a) * self.v,
    lambda self, a, b, _: self.norm(a),
    lambda self, a, b, _: a @ self.frozen + self.constant.mul(2),
    lambda self, a, b, _: self.w.view(2, 8).t().reshape(4, 4) * a,
    lambda self, a, b, _: F.layer_norm(a, (4,), self.v),
    lambda _, a, b, c: F.dropout(a, 0.3),
    lambda _, a, b, c: a.t() * torch.rand_like(b),
    lambda _, a, b, c: a.reshape(2, 8).reshape(4, 4),
    lambda _, a, b, c: a[torch.tensor([0, 2, 1, 3])],
    lambda _, a, b, c: F.softmax(a @ b.t(), -1) @ a,
    lambda _, a, b, c: a.sort(1)[0] + a.topk(2, 1)[0].repeat(1, 2),
    lambda _, a, b, c: torch.where(a > 0, a, b).masked_fill(a > 1, 0.5),
    lambda _, a, b, c: torch.zeros_like(a).index_add(0, torch.tensor([1, 1, 0, 3]), a),
    lambda _, a, b, c: a.diagonal()[:, None] * b,
]


class RandomModule(nn.Module):
    """A few of the steps above on parameters, buffers and earlier results; some results are outputs, some twice."""

    w: Tensor
    v: Tensor
    frozen: Tensor
    constant: Tensor
    count: Tensor
    linear: nn.Module
    norm: nn.Module

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.linear, self.norm, self.constant = nn.Linear(4, 4), nn.BatchNorm1d(4), torch.randn(4, 4)
        self.register_buffer("count", torch.zeros(4, 4))
        self._plan = [(rng.choice(STEPS), rng.randrange(1, 5), rng.randrange(1, 5)) for _ in range(rng.randint(2, 9))]
        self._outputs = [rng.randrange(1, 4) for _ in range(rng.randint(1, 4))]

    def forward(self, x: Tensor, y: Tensor, counts: Tensor) -> Any:
        pool = [x, y, x, y]
        for step, a, b in self._plan:
            pool.append(step(self, pool[-a], pool[-b], counts))
        return {"out": [pool[-i] for i in self._outputs], "last": pool[-1]}


@pytest.mark.parametrize("seed", range(8))
def test_a_random_module_is_equal_to_eager(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    module = RandomModule(rng).requires_grad_(rng.random() < 0.8)
    x, y = torch.randn(4, 4).requires_grad_(rng.random() < 0.7), torch.randn(4, 4).requires_grad_(rng.random() < 0.5)
    args = (x, y, torch.tensor([1, 3]))
    try:
        Eager(module, args)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return
    try:
        graphs = check_against_eager(module, args)
    except CaptureError as error:
        if not any(reason in str(error) for reason in ("Could not guard", "no output depends")):
            raise
        return
    for counts in ([0, 4], [4, 0], [2, 2]):
        check_against_eager(module, (x, y, torch.tensor(counts)), graphs=graphs)
