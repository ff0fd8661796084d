"""Checks of our kernels: against PyTorch's operations, against themselves, and how long they take.

On a CPU the operators are PyTorch's operations, so that the checks run and find nothing; the kernels themselves are
tested in Triton's interpreter (tests/kernels).
"""

import dataclasses
import functools

import torch

from annopipe.kernels.implementation import grouped_kernels, has_kernels, row_kernels
from annopipe.kernels.tiles import KERNEL_DTYPES, matrix_tiles, row_tiles
from benchmarks.gpu_check.checklist import Checklist, Found
from benchmarks.kernels.measuring import LARGE, SMALL, Operands, Sizes, calls, difference, measure
from benchmarks.kernels.showing import table

__all__ = ["run"]

_MIDDLE = Sizes(tokens=700, top_k=4, experts=24, hidden=512, inner=320, skew=1.5)
_ODD = Sizes(tokens=131, top_k=3, experts=9, hidden=70, inner=33, skew=2.0)
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_STRESS = 200


def run(checks: Checklist, device: torch.device) -> None:
    """All checks of this group."""
    on_gpu = device.type == "cuda"
    middle = _MIDDLE if on_gpu else SMALL
    for dtype in KERNEL_DTYPES:
        name = str(dtype).removeprefix("torch.")
        checks.check(f"results, {name}", functools.partial(_equal_to_pytorch, (middle, _ODD), dtype, device))
    checks.check("tiles", functools.partial(_tiles_change_no_bit, middle, device))
    checks.check("multiprocessors", functools.partial(_a_limit_changes_no_bit, middle, device))
    checks.check("stress", functools.partial(_stress, middle, device))
    checks.check("times", functools.partial(_times, LARGE if on_gpu else SMALL, device))


def _equal_to_pytorch(several: tuple[Sizes, ...], dtype: torch.dtype, device: torch.device) -> Found:
    """Every operation within the rounding of the type, for sizes that 16 divides and that it does not."""
    worst: dict[str, float] = {}
    for sizes in several:
        operands = Operands.random(sizes, dtype, device)
        for call in calls(operands):
            worst[call.name] = max(worst.get(call.name, 0.0), difference(call.ours(), call.theirs()))
    name = max(worst, key=worst.__getitem__)
    told = f"{len(worst)} operations: at most {worst[name]:.1e} apart ({name}), limit {_TOLERANCE[dtype]:.1e}"
    return Found(worst[name] <= _TOLERANCE[dtype], told, {"differences": worst})


def _tiles_change_no_bit(sizes: Sizes, device: torch.device) -> Found:
    """Whatever tile is chosen, on whichever rank, the result is the same."""
    o = Operands.random(sizes, torch.bfloat16, device)
    if not has_kernels(o.x):
        return Found(ok=True, detail="no kernels on this device: nothing to choose")
    rows, grouped, capability = row_kernels(), grouped_kernels(), torch.cuda.get_device_capability(device)[0]
    tiles = matrix_tiles(torch.bfloat16, "ieee", capability)
    results = {
        "permute": [rows.permute(o.x, o.weights, o.source, o.top_k, tile) for tile in row_tiles()],
        "unpermute": [rows.unpermute(o.rows, o.weights, o.target, o.top_k, tile) for tile in row_tiles()],
        "grouped_mm": [grouped.product(o.rows, o.matrices, o.counts, 0, tile) for tile in tiles],
        "grouped_mm_weight_grad": [grouped.weight_grad(o.rows, o.grad, o.counts, 0, tile) for tile in tiles],
    }
    wrong = [name for name, found in results.items() if not all(torch.equal(found[0], other) for other in found[1:])]
    return Found(not wrong, f"{len(row_tiles())} and {len(tiles)} tiles; other bits in: {', '.join(wrong) or 'none'}")


def _a_limit_changes_no_bit(sizes: Sizes, device: torch.device) -> Found:
    """One program, a few, or one for each multiprocessor: the same results."""
    o = Operands.random(sizes, torch.bfloat16, device)
    limits = (0, 1, 7, 100)
    found = [[call.ours() for call in calls(o, sms) if call.flops] for sms in limits]
    wrong = [n for n, other in zip(limits, found, strict=True) if not all(map(torch.equal, other, found[0]))]
    return Found(not wrong, f"limits {', '.join(map(str, limits))}; other bits with: {wrong or 'none'}")


def _stress(sizes: Sizes, device: torch.device) -> Found:
    """Other tokens, and other numbers of them, each time: close to PyTorch's, and the same a second time."""
    far, unstable, worst = 0, 0, 0.0
    for number in range(_STRESS):
        changed = dataclasses.replace(sizes, tokens=1 + number * 37 % sizes.tokens, skew=number % 4)
        operands = Operands.random(changed, torch.bfloat16, device, seed=number)
        for call in calls(operands):
            first, again = call.ours(), call.ours()
            apart = difference(first, call.theirs())
            worst = max(worst, apart)
            far += apart > _TOLERANCE[torch.bfloat16]
            unstable += not torch.equal(first, again)
    return Found(
        not far and not unstable,
        f"{_STRESS} runs: at most {worst:.1e} from PyTorch's, {far} too far, {unstable} not the same again",
        {"worst": worst},
    )


def _times(sizes: Sizes, device: torch.device) -> Found:
    """Every operation beside PyTorch's, for the reader."""
    rows = measure(sizes, torch.bfloat16, device)
    slower = [row.name for row in rows if row.ours_s > row.theirs_s and "SMs" not in row.name]
    detail = f"{len(rows)} operations, slower than PyTorch's: {', '.join(slower) or 'none'}"
    figures = {"kernels": table(rows), "rows": [dataclasses.asdict(row) for row in rows]}
    return Found(all(row.difference < _TOLERANCE[torch.bfloat16] for row in rows), detail, figures)
