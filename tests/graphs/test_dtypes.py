"""Tensors of different dtypes in one operation: what PyTorch refuses is refused when it is traced."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import annopipe as ap


class Does(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.bias = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.run(x, self.weight, self.bias)


ROWS = torch.tensor([0, 1])
RUNS = {
    "mm": lambda x, w, _: x @ w,
    "linear": lambda x, w, b: F.linear(x.to(w.dtype), w, b.double()),
    "mv": lambda x, _, b: x @ b,
    "bmm": lambda x, w, _: torch.bmm(x[None], w[None]),
    "convolution": lambda x, w, _: F.conv1d(x[None], w[:, :, None]),
    "layer_norm": lambda x, _, b: F.layer_norm(x, (2,), b, b),
    "group_norm": lambda x, _, b: F.group_norm(x[None], 2, b, b),
    "batch_norm": lambda x, _, b: F.batch_norm(x, None, None, b, b, training=True),
    "index_add": lambda x, w, _: w.index_add(0, ROWS, x),
    "index_put": lambda x, w, _: w.index_put((ROWS,), x),
    "binary_cross_entropy": lambda x, w, _: F.binary_cross_entropy(torch.sigmoid(w), x),
    "cdist": lambda x, w, _: torch.cdist(x, w),
    "grid_sample": lambda x, w, _: F.grid_sample(w[None, None], x[None, None], align_corners=False),
    "add": lambda x, w, _: x + w,
    "where": lambda x, w, _: torch.where(x > 0, x, w),
    "mse_loss": lambda x, w, _: F.mse_loss(x, w),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.long, torch.float32])
def test_what_eager_refuses_is_refused_and_nothing_else(name, dtype):
    module, x = Does(RUNS[name]), torch.ones(2, 2).to(dtype)
    try:
        module(x)
    except (RuntimeError, NotImplementedError):
        with pytest.raises(ap.CaptureError):
            ap.trace(module, (x,))
        return
    ap.trace(module, (x,))


def test_the_message_names_the_module_the_region_and_the_dtypes():
    def run(x, *_):
        with ap.region("head"):
            return inner(x)

    inner = Does(RUNS["mm"])
    module = Does(run)
    module.inner = inner
    expected = (
        "aten.mm.default in Does.inner, region head, takes tensors of one dtype and gets torch.float64 and torch.f"
    )
    with pytest.raises(ap.CaptureError, match=expected):
        ap.trace(module, (torch.ones(2, 2).double(),))


def test_autocast_converts():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ap.trace(Does(RUNS["mm"]), (torch.ones(2, 2).bfloat16(),))
