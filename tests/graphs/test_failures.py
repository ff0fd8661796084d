"""Whatever goes wrong while tracing is a CaptureError that names the user's line."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import AnnopipeError, CaptureError, GraphError
from tests.graphs.modules import Function, leaf


def branches_on_data(_: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:  # the line
        return x
    return x * 2


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ValueError("backward is broken")  # the line


def test_a_branch_on_data_is_named() -> None:
    with pytest.raises(
        CaptureError,
        match=r"cannot trace Function: it branches on a value that only the data decides.*torch.where.*"
        r"\n  at .*test_failures.py:\d+, in branches_on_data: if x.sum",
    ):
        ap.trace(Function(branches_on_data), (leaf(3),))


def test_a_line_of_a_backward_is_named() -> None:
    with pytest.raises(
        CaptureError, match=r"backward is broken \(ValueError\)\n  at .*test_failures.py:\d+, in backward"
    ):
        ap.trace(Function(lambda _, x: Broken.apply(x)), (leaf(3),))


def test_a_line_of_torch_is_named_where_there_is_no_other() -> None:
    with pytest.raises(CaptureError, match=r"cannot trace BatchNorm1d: .*\n  at .*batchnorm.py:\d+, in forward"):
        ap.trace(nn.BatchNorm1d(3, momentum=None), (leaf(4, 3),))


def test_the_cause_is_kept() -> None:
    with pytest.raises(CaptureError) as caught:
        ap.trace(Function(lambda _, x: x.numpy()), (leaf(3),))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, AnnopipeError)


def test_an_error_without_text_is_named_by_its_type() -> None:
    def fail(_: Any, x: Tensor) -> Tensor:
        raise StopIteration

    with pytest.raises(CaptureError, match=r"cannot trace Function: StopIteration \(StopIteration\)"):
        ap.trace(Function(fail), (leaf(3),))


def test_errors_of_annopipe_and_interruptions_pass() -> None:
    def region(_: Any, x: Tensor) -> Tensor:
        with ap.region("no such name"):
            return x * 2

    def interrupt(_: Any, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(GraphError, match="region name 'no such name'"):
        ap.trace(Function(region), (leaf(3),))
    with pytest.raises(KeyboardInterrupt):
        ap.trace(Function(interrupt), (leaf(3),))
