"""Which tile a kernel works in: the fastest one, timed when a kernel meets sizes of a new kind, and remembered.

Timing runs on the current stream and waits for that stream only: a pipeline may have posted messages on other streams
that arrive only after this rank has computed on. While a CUDA graph is captured nothing can be timed; what was chosen
before is taken then, else the table's first tile. Ranks may choose differently: the tile decides no order in which an
element is added up.

Sizes are of one kind when they are alike but for the number of rows, and that has as many binary digits.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch

from annopipe.errors import GraphError

__all__ = ["Choices", "call_seconds", "tile_choices"]

_WARM_UP = 2
Tile = TypeVar("Tile")


class Choices:
    """What has been chosen, by kind of call.

    >>> choices = Choices()
    >>> choices.choose("product", (64, 128), lambda tile: {64: 2.0, 128: 1.0}[tile])
    128
    >>> choices.choose("product", (64, 128), lambda tile: 0.0)
    128
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chosen: Mapping[Hashable, object] = {}

    def known(self, kind: Hashable) -> object | None:
        """What has been chosen for calls of a kind, if anything."""
        return self._chosen.get(kind)

    def choose(self, kind: Hashable, tiles: Sequence[Tile], seconds: Callable[[Tile], float]) -> Tile:
        """The tile for calls of a kind: the one with the fewest seconds, the first among equals.

        Args:
            kind: what the choice is remembered by.
            tiles: to choose from.
            seconds: times a tile; infinity where it cannot run here.

        Raises:
            GraphError: no tile can run here.
        """
        chosen = self.known(kind)
        if chosen is None:
            times = [seconds(tile) for tile in tiles]
            best = min(times)
            if math.isinf(best):
                raise GraphError(
                    f"none of {len(tiles)} tiles of the kernel {kind} fits on this GPU: it needs 99 KiB of shared "
                    "memory per block; run the model on another device, or move it to the CPU"
                )
            chosen = tiles[times.index(best)]
            with self._lock:
                self._chosen = {**self._chosen, kind: chosen}
        return chosen  # type: ignore[return-value]


@functools.cache
def tile_choices() -> Choices:
    """The choices of this process, as the compiled kernels are the process's."""
    return Choices()


def call_seconds(run: Callable[[], object], device: torch.device, calls: int = 5) -> list[float]:
    """How long each of some calls takes, on the current stream where that is a GPU's; the first two are not counted.

    >>> len(call_seconds(lambda: None, torch.device("cpu")))
    5
    """
    timed = _on_stream if device.type == "cuda" else _by_clock
    return [timed(run) for _ in range(_WARM_UP + calls)][_WARM_UP:]


def _on_stream(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def _by_clock(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
