"""Adapter to CUDA graphs, and to copies of many tensors at once (private in torch)."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from annopipe.capturing.tape import Function, NotRecorded, Recording, Tensors

__all__ = ["CudaRecorder"]

_SYNCHRONIZES = "called a synchronizing CUDA operation"


class CudaRecorder:
    """Records runs as CUDA graphs of the current device, which share one pool of memory.

    That is safe, since results are held for as long as their recording: what is given back to the pool are values that
    live within one run, and no two runs are underway at a time.
    """

    device = "cuda"

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, function: Function, arguments: Tensors) -> Recording:
        """See `Recorder`."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function(*arguments)  # kernels are loaded, tiles chosen, memory of libraries allocated
            with _without_synchronizing():
                function(*arguments)
            graph = torch.cuda.CUDAGraph()
            # Only this thread's mistakes count: that of NCCL may ask for events at any time.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = function(*arguments)
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        graph.replay()
        return Recording(tuple(results), graph.replay)

    def copies(self, values: Tensors) -> list[torch.Tensor]:
        """See `Recorder`."""
        made = [_alike(value) for value in values]
        self.copy(made, values)
        return made

    def copy(self, targets: Tensors, values: Tensors) -> None:
        """See `Recorder`."""
        torch._foreach_copy_(_listed(targets), _listed(values))


def _alike(value: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor that lies as this one does; in one piece where several of its elements are one."""
    if 0 in value.stride():
        return torch.empty_like(value)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _listed(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return values if isinstance(values, list) else list(values)


@contextlib.contextmanager
def _without_synchronizing() -> Iterator[None]:
    """Raises NotRecorded for what makes the host wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if _SYNCHRONIZES not in str(error):
            raise
        raise NotRecorded("an operation of it makes the host wait for the GPU") from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
