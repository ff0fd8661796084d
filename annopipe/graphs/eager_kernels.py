"""Have operations traced as eager PyTorch runs them.

Adapter to PyTorch's Python dispatcher (``py_kernels`` of operators, ``torch/_ops.py``), which only tracing uses: it
holds formulas for interpolation, recurrent layers and dropout that round differently from eager
(``torch/_decomp/decompositions.py``), and its functional form of ``bernoulli_`` fills memory in another order when the
tensor is not contiguous.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["eager_kernels"]

_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
_RECURRENT = ("gru", "rnn_relu", "rnn_tanh")  # LSTM keeps its formula: oneDNN's kernel needs autograd for its backward
Operator = torch._ops.OpOverload


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """While it is open, tracing sees the operations that eager runs; values and gradients are then equal bit by bit."""
    registered = [name.partition("::") for name in torch._C._dispatch_get_all_op_names()]
    names = {name.partition(".")[0] for namespace, _, name in registered if namespace == "aten"}
    packets = [getattr(torch.ops.aten, name) for name in names if "upsample" in name or name in _RECURRENT]
    replaced: dict[tuple[Operator, Any], Callable[..., Any] | None] = {
        (getattr(packet, overload), key): None for packet in packets for overload in packet.overloads() for key in _KEYS
    }
    replaced |= {(torch.ops.aten.dropout.default, key): _dropout for key in _KEYS}
    replaced[torch.ops.aten.bernoulli_.float, torch._C.DispatchKey.Autograd] = _bernoulli_in_memory_order
    for key in _KEYS:
        if formula := torch.ops.aten.lstm.input.py_kernels.get(key):
            replaced[torch.ops.aten.lstm.input, key] = _lstm_by(formula)
    originals = {place: place[0].py_kernels.get(place[1]) for place in replaced}
    _install(replaced)
    try:
        yield
    finally:
        _install(originals)


def _install(kernels: dict[tuple[Operator, Any], Callable[..., Any] | None]) -> None:
    for (operator, key), kernel in kernels.items():
        operator.py_kernels.pop(key, None)
        if kernel is not None:
            operator.py_kernels[key] = kernel
        operator._dispatch_cache.clear()


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """The same as ``at::dropout`` in ``aten/src/ATen/native/Dropout.cpp``, also for sizes that depend on data."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    if x.device.type in ("cuda", "xpu"):
        return torch.native_dropout(x, p, train)[0]
    return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)


def _lstm_by(formula: Callable[..., Any]) -> Callable[..., Any]:
    """LSTM by PyTorch's formula, which in 2.11 gives the last states another dimension where a batch is not of 1."""

    def lstm(x: torch.Tensor, states: list[torch.Tensor], *args: Any) -> tuple[torch.Tensor, ...]:
        output, *last = formula(x, states, *args)
        pairs = zip(last, states, strict=True)
        return output, *(new if new.dim() == old.dim() else new.reshape(old.shape) for new, old in pairs)

    return lstm


def _bernoulli_in_memory_order(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    """Draw as eager does: in the order of memory, which is the order of a permuted view."""
    strides = x.stride()
    known = all(isinstance(stride, int) for stride in strides)  # else they depend on data; such tensors are contiguous
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d)) if known else list(range(x.dim()))
    with torch._C._AutoDispatchBelowAutograd():
        x.permute(order).bernoulli_(p, generator=generator)
    return x
