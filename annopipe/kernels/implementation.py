"""Who computes an operation: our Triton kernels on a GPU, PyTorch's operations everywhere else.

The kernels take bfloat16, float16 and float32 on NVIDIA GPUs of capability 8.0 and later, where Triton is installed, as
it is with every CUDA build of PyTorch for Linux. Triton is imported at the first call that takes a kernel.
"""

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from annopipe.kernels.tiles import KERNEL_DTYPES

__all__ = ["grouped_kernels", "has_kernels", "row_kernels"]

_HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None


def has_kernels(*operands: Tensor | None) -> bool:
    """Whether our kernels take these operands; fake tensors on a GPU count as such.

    >>> has_kernels(torch.ones(2, 2))
    False
    """
    tensors = [operand for operand in operands if operand is not None]
    return (
        all(tensor.device.type == "cuda" and tensor.dtype in KERNEL_DTYPES for tensor in tensors)
        and _HAS_TRITON
        and _is_recent(tensors[0].device)
    )


def row_kernels() -> Any:
    """The module with the kernels of rows, ``annopipe/kernels/triton_rows.py``."""
    return importlib.import_module("annopipe.kernels.triton_rows")


def grouped_kernels() -> Any:
    """The module with the kernels of grouped products, ``annopipe/kernels/triton_grouped.py``."""
    return importlib.import_module("annopipe.kernels.triton_grouped")


def _is_recent(device: torch.device) -> bool:
    """Whether the GPU is recent enough; without a GPU there are only fake tensors, which nothing computes.

    Dynamo knows these two calls, and takes what they return for constants.
    """
    return not torch.cuda.is_available() or torch.cuda.get_device_properties(device).major >= 8
