"""What a launch of a kernel needs to know of the device, and the choice of its tile."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from annopipe.kernels.tuning import call_seconds, tile_choices

__all__ = ["aligned", "by_row", "capability", "chosen", "precision", "programs"]

_HERE = (9, 132)  # capability and multiprocessors that the interpreter stands in for
Tile = TypeVar("Tile")


def by_row(x: Tensor) -> Tensor:
    """The same values with the values of a row side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def aligned(tensors: Sequence[Tensor], numbers: Sequence[int]) -> bool:
    """Whether 16 divides all addresses and numbers but 1, so that the compiler loads 16 bytes at once."""
    places = (tensor.data_ptr() for tensor in tensors)
    return not any(number % 16 for number in (*places, *numbers) if number != 1)


def capability(device: torch.device) -> int:
    """The major compute capability of a GPU."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else _HERE[0]


def programs(device: torch.device, sms: int) -> int:
    """How many programs of a persistent kernel run at once: one for each multiprocessor it may occupy; 0: for all."""
    cuda = device.type == "cuda"
    there = torch.cuda.get_device_properties(device).multi_processor_count if cuda else _HERE[1]
    return min(sms, there) if sms else there


def precision(dtype: torch.dtype) -> str:
    """How operands are multiplied: float32 as ``torch.backends.cuda.matmul`` says, exactly unless it allows TF32."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def chosen(
    kind: Hashable, rows: int, tiles: Sequence[Tile], launch: Callable[[Tile], None], device: torch.device
) -> Tile:
    """The tile to launch a kernel with; timed when sizes of a new kind come, unless nothing can be timed now."""
    kind = kind, rows.bit_length(), device
    if device.type != "cuda":
        return tiles[0]
    if torch.cuda.is_current_stream_capturing():
        return cast(Tile, tile_choices().known(kind) or tiles[0])

    def seconds(tile: Tile) -> float:
        try:
            return min(call_seconds(lambda: launch(tile), device))
        except OutOfResources:
            return math.inf

    return tile_choices().choose(kind, tiles, seconds)
