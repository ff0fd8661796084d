"""Our kernels beside PyTorch's operations: how far results are apart, how long each takes, and of which ceiling.

The ceilings are measured on the same device just before: bytes per second of a large copy, floating-point operations
per second of a large product.
"""

import dataclasses
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from annopipe import kernels
from annopipe.kernels import torch_grouped, torch_rows
from annopipe.kernels.tuning import call_seconds
from annopipe.models.permute import by_expert

__all__ = ["LARGE", "SMALL", "Call", "Operands", "Row", "Sizes", "calls", "difference", "measure"]

_ROUNDS = 7


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of one expert layer: tokens, the experts that each visits, widths, and how skewed the routing is."""

    tokens: int
    top_k: int
    experts: int
    hidden: int
    inner: int
    skew: float = 1.0


LARGE = Sizes(tokens=8192, top_k=8, experts=32, hidden=4096, inner=1536)
SMALL = Sizes(tokens=24, top_k=2, experts=6, hidden=32, inner=16)


@dataclasses.dataclass(frozen=True)
class Operands:
    """What the operations take; the last expert has no rows."""

    x: Tensor
    rows: Tensor
    weights: Tensor
    source: Tensor
    target: Tensor
    counts: Tensor
    matrices: Tensor
    grad: Tensor
    top_k: int

    @classmethod
    def random(cls, sizes: Sizes, dtype: torch.dtype, device: torch.device, seed: int = 0) -> "Operands":
        """Random values; experts are popular as in a Zipf distribution."""
        generator = torch.Generator().manual_seed(seed)
        shares = torch.arange(1, sizes.experts, dtype=torch.float64) ** -sizes.skew
        top_k = min(sizes.top_k, sizes.experts - 1)
        drawn = torch.multinomial(shares.expand(sizes.tokens, -1), top_k, generator=generator)
        order, counts = by_expert(drawn.flatten().to(device), sizes.experts)
        slots = sizes.tokens * top_k

        def made(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        return cls(
            x=made(sizes.tokens, sizes.hidden),
            rows=made(slots, sizes.hidden),
            weights=torch.rand(sizes.tokens, top_k, generator=generator).to(device),
            source=order.source,
            target=order.target,
            counts=counts,
            matrices=made(sizes.experts, sizes.hidden, sizes.inner),
            grad=made(slots, sizes.inner),
            top_k=top_k,
        )


@dataclasses.dataclass(frozen=True)
class Call:
    """One operation as we and as PyTorch do it, and the least that it moves or computes."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    size_bytes: int = 0
    flops: int = 0


@dataclasses.dataclass(frozen=True)
class Row:
    """One operation measured.

    share: of the ceiling that the operation runs against, of bytes or of operations.
    difference: the largest between our result and PyTorch's, over the largest value.
    """

    name: str
    ours_s: float
    theirs_s: float
    share: float
    ceiling: str
    difference: float


def calls(o: Operands, sms: int = 0) -> list[Call]:
    """Every operation on the operands; ``sms``: a limit for the grouped products of ours."""
    moved = o.x.numel() * o.x.element_size()
    slots = o.rows.numel() * o.rows.element_size()
    indices = o.source.numel() * o.source.element_size()
    weights = o.weights.numel() * o.weights.element_size()
    flops = 2 * o.rows.shape[0] * o.matrices.shape[1] * o.matrices.shape[2]
    order, transposed = (o.source, o.target, o.top_k), o.matrices.transpose(1, 2)
    return [
        Call(
            "permute",
            lambda: kernels.permute(o.x, *order),
            lambda: torch_rows.permute(o.x, None, o.source, o.top_k),
            moved + slots + indices,
        ),
        Call(
            "unpermute, weighted",
            lambda: kernels.unpermute(o.rows, *order, o.weights),
            lambda: torch_rows.unpermute(o.rows, o.weights, o.target, o.top_k),
            moved + slots + indices + weights,
        ),
        Call(
            "permute, weighted",
            lambda: kernels.permute(o.x, *order, o.weights),
            lambda: torch_rows.permute(o.x, o.weights, o.source, o.top_k),
            moved + slots + indices + weights,
        ),
        Call(
            "row_products",
            lambda: kernels.row_products(o.x, o.rows, *order, torch.float32),
            lambda: torch_rows.row_products(o.x, o.rows, o.target, o.top_k, torch.float32),
            moved + slots + indices + weights,
        ),
        Call(
            "grouped_mm, forward",
            lambda: kernels.grouped_mm(o.rows, o.matrices, o.counts, sms),
            lambda: torch_grouped.product(o.rows, o.matrices, o.counts),
            flops=flops,
        ),
        Call(
            "grouped_mm, input gradient",
            lambda: kernels.grouped_mm(o.grad, transposed, o.counts, sms),
            lambda: torch_grouped.product(o.grad, transposed, o.counts),
            flops=flops,
        ),
        Call(
            "grouped_mm, weight gradient",
            lambda: kernels.grouped_mm_weight_grad(o.rows, o.grad, o.counts, sms),
            lambda: torch_grouped.weight_grad(o.rows, o.grad, o.counts),
            flops=flops,
        ),
    ]


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value; 0 where both are empty."""
    if not expected.numel():
        return 0.0
    largest = expected.double().abs().max().clamp(min=1e-30)
    return float((found.double() - expected.double()).abs().max() / largest)


def measure(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> list[Row]:
    """Every operation, ours beside PyTorch's; on a GPU also with three quarters of the multiprocessors."""
    operands = Operands.random(sizes, dtype, device)
    bytes_per_s, flops_per_s = _copied_per_s(sizes, dtype, device), _multiplied_per_s(sizes, dtype, device)
    listed = [(call.name, call) for call in calls(operands)]
    if device.type == "cuda":
        sms = torch.cuda.get_device_properties(device).multi_processor_count * 3 // 4
        listed += [(f"{call.name}, on {sms} SMs", call) for call in calls(operands, sms) if call.flops]
    rows = []
    for name, call in listed:
        ours, theirs = _seconds(call.ours, device), _seconds(call.theirs, device)
        share = call.flops / ours / flops_per_s if call.flops else call.size_bytes / ours / bytes_per_s
        ceiling = f"{flops_per_s / 1e12:.3g} TFLOP/s" if call.flops else f"{bytes_per_s / 1e9:.3g} GB/s"
        rows.append(Row(name, ours, theirs, share, ceiling, difference(call.ours(), call.theirs())))
    return rows


def _copied_per_s(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> float:
    source = torch.empty(sizes.tokens * sizes.top_k, sizes.hidden, dtype=dtype, device=device)
    into = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / _seconds(lambda: into.copy_(source), device)


def _multiplied_per_s(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> float:
    side = sizes.tokens
    left = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _seconds(lambda: torch.mm(left, left), device)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The median of a few calls; a clock that stands still must not make an infinite rate."""
    return max(statistics.median(call_seconds(run, device, _ROUNDS)), 1e-9)
