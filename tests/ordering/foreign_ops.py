"""A foreign all-to-all as a pair of custom operators, in four shapes, as DeepEP or symmetric memory would have it.

    rows = foreign::join(foreign::start(x, group, ...))              one tensor, the wait returns what is ready
    rows = foreign::start(x, group, ...)                             and foreign::settle(rows), which returns nothing
    rows, handle = foreign::start_with_handle(x, group, ...)         and foreign::join_handle(rows, handle, scale)
    rows, handle = foreign::start_with_handle(x, group, ...)         and foreign::sync(handle), which returns nothing

Reading too early gives wrong numbers: the rows that arrive are NaN until somebody has waited for them.
"""

import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from annopipe import annotate
from annopipe.graphs.process_groups import group_by_name

DELAY_S = 0.01
_flying: dict[int, tuple[threading.Thread, Tensor]] = {}  # by handle
_handles: dict[int, int] = {}  # by the address of the rows


def _launch(x: Tensor, group: str) -> tuple[Tensor, int]:
    sent, rows = x.contiguous(), torch.full_like(x, float("nan"))
    arrived = torch.empty_like(sent)
    work = dist.all_to_all_single(arrived, sent, group=group_by_name(group), async_op=True)

    def finish() -> None:
        work.wait()
        time.sleep(DELAY_S)
        with torch.no_grad():  # a thread starts with autograd on
            rows.copy_(arrived)

    thread = threading.Thread(target=finish)
    handle = id(thread)
    _flying[handle] = thread, rows
    _handles[rows.data_ptr()] = handle
    thread.start()
    return rows, handle


def _finish(handle: int) -> Tensor:
    thread, rows = _flying.pop(handle)
    thread.join()
    _handles.pop(rows.data_ptr(), None)
    return rows


@torch.library.custom_op("foreign::start", mutates_args=())
def start(x: Tensor, group: str, synced: bool) -> Tensor:
    return _launch(x, group)[0]


@torch.library.custom_op("foreign::join", mutates_args=())
def join(rows: Tensor) -> Tensor:
    return _finish(_handles[rows.data_ptr()]).clone()


@torch.library.custom_op("foreign::settle", mutates_args=())
def settle(rows: Tensor) -> None:
    _finish(_handles[rows.data_ptr()])


@torch.library.custom_op("foreign::start_with_handle", mutates_args=())
def start_with_handle(x: Tensor, group: str, synced: bool) -> tuple[Tensor, Tensor]:
    rows, handle = _launch(x, group)
    return rows, torch.tensor([handle])


@torch.library.custom_op("foreign::join_handle", mutates_args=())
def join_handle(rows: Tensor, handle: Tensor, scale: Tensor) -> Tensor:
    _finish(int(handle))
    return rows * scale


@torch.library.custom_op("foreign::sync", mutates_args=())
def sync(handle: Tensor) -> None:
    _finish(int(handle))


start.register_fake(lambda x, *_: torch.empty_like(x))
join.register_fake(torch.empty_like)
start_with_handle.register_fake(lambda x, *_: (torch.empty_like(x), torch.empty(1, dtype=torch.int64)))
join_handle.register_fake(lambda rows, *_: torch.empty_like(rows))
settle.register_fake(lambda _: None)
sync.register_fake(lambda _: None)


def _keep_arguments(ctx, inputs, output) -> None:
    _, ctx.group, ctx.synced = inputs


def _start_backward(ctx, gradient: Tensor):
    rows = start(gradient, ctx.group, ctx.synced)
    if ctx.synced:
        settle(rows)
        return rows, None, None
    return join(rows), None, None


def _start_with_handle_backward(ctx, gradient: Tensor, _handle):
    rows, handle = start_with_handle(gradient, ctx.group, ctx.synced)
    if ctx.synced:
        sync(handle)
        return rows, None, None
    return join_handle(rows, handle, torch.ones(())), None, None


def _keep_scale(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[2])


start.register_autograd(_start_backward, setup_context=_keep_arguments)
join.register_autograd(lambda _, gradient: gradient)
start_with_handle.register_autograd(_start_with_handle_backward, setup_context=_keep_arguments)
join_handle.register_autograd(
    lambda ctx, gradient: (gradient * ctx.saved_tensors[0], None, None), setup_context=_keep_scale
)


class Layer(nn.Module):
    """Attention, a foreign exchange there, experts, and back; ``shape`` says which operators."""

    def __init__(self, shape: str, group: str, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.shape, self.group = shape, group
        self.before = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(1.5))

    def exchange(self, x: Tensor) -> Tensor:
        if self.shape == "one":
            return join(start(x, self.group, False))
        if self.shape == "one, nothing":
            rows = start(x, self.group, True)
            settle(rows)
            return rows
        rows, handle = start_with_handle(x, self.group, self.shape == "nothing")
        if self.shape == "several":
            return join_handle(rows, handle, self.scale)
        sync(handle)
        return rows

    def forward(self, x: Tensor) -> Tensor:
        for number, (before, experts) in enumerate(zip(self.before, self.experts, strict=True)):
            with annotate.region(f"block{number}"):
                with annotate.region("attention"):
                    x = x + before(x).relu()
                with annotate.comm("dispatch"):
                    rows = self.exchange(x)
                with annotate.region("experts"):
                    rows = experts(rows).relu()
                with annotate.comm("combine"):
                    x = x + self.exchange(rows)
        return x
