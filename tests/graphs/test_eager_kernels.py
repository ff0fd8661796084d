"""What is traced is what eager runs: interpolation, dropout and in-place random numbers in any memory layout."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import annopipe as ap
from annopipe.graphs.eager_kernels import eager_kernels
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 0, 1)], ids=str)
def test_dropout_is_equal_in_every_dtype_and_layout(dtype: torch.dtype, dims: Any) -> None:
    check_against_eager(Function(lambda _, x: F.dropout(x.permute(dims) * 2, 0.3)), (leaf(7, 3, 5, dtype=dtype),))


@pytest.mark.parametrize(
    "dropout",
    [
        lambda x: F.dropout(x, 1.0),
        lambda x: F.dropout(x, 0.0) * 2,
        lambda x: F.dropout(x, 0.5, training=False) * 2,
        lambda x: F.dropout(x * 2, 0.5, inplace=True),
        lambda x: F.dropout(x[:0], 0.5),
    ],
    ids=["all", "none", "evaluating", "in place", "no rows"],
)
def test_dropout_in_special_cases(dropout: Any) -> None:
    check_against_eager(Function(lambda _, x: dropout(x)), (leaf(4, 3),))


def test_dropout_of_rows_that_depend_on_data_in_the_middle() -> None:
    def forward(_: Any, x: Tensor, counts: Tensor) -> Tensor:
        return torch.cat([F.dropout(part, 0.3) for part in x.split(counts.tolist(), dim=1)], dim=1)

    graphs = ap.trace(Function(forward), (leaf(2, 6, 4), torch.tensor([1, 2, 3])))
    for counts in ([1, 2, 3], [0, 0, 6], [0, 1, 5]):
        check_against_eager(Function(forward), (leaf(2, 6, 4), torch.tensor(counts)), graphs=graphs)


@pytest.mark.parametrize("method", ["bernoulli_", "normal_", "uniform_", "exponential_", "random_"])
def test_random_numbers_in_place_are_drawn_in_the_order_of_memory(method: str) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        transposed, strided = torch.zeros(4, 3).t(), torch.zeros(3, 8)[:, ::2]
        return x * getattr(transposed, method)() + getattr(strided, method)()

    check_against_eager(Function(forward), (leaf(3, 4),))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_is_one_operation(mode: str) -> None:
    module = Function(lambda _, x: F.interpolate(x, scale_factor=1.5, mode=mode))
    graphs = check_against_eager(module, (leaf(1, 2, 4, 4),))
    assert any("upsample" in str(node.target) for node in graphs.forward.graph.nodes)


def test_the_kernels_are_as_before_afterwards() -> None:
    operators = [aten.dropout.default, aten.bernoulli_.float, aten.upsample_bilinear2d.vec, aten.gru.input]
    before = [dict(operator.py_kernels) for operator in operators]
    with pytest.raises(ValueError, match="stop"), eager_kernels():
        assert [dict(operator.py_kernels) for operator in operators] != before
        raise ValueError("stop")
    assert [dict(operator.py_kernels) for operator in operators] == before
