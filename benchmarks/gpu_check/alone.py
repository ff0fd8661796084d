"""Checks without a process group: host reads, random numbers, checkpointed regions, autocast."""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import annopipe as ap
from annopipe.graphs.host_copies import PinnedCopies
from benchmarks.gpu_check.checklist import Checklist, Found
from benchmarks.pair.case import Case
from benchmarks.pair.stage import Pair, differing

__all__ = ["run"]

_SEED = 7
_COPIES = 20


def run(checks: Checklist, device: torch.device) -> None:
    """All checks of this group."""
    torch.manual_seed(_SEED)
    width = 256 if device.type == "cuda" else 32
    dropout = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3), nn.GELU(), nn.Linear(width, width)).to(device)
    x = torch.randn(8, 16, width, device=device)
    checks.check("host reads", functools.partial(_nothing_is_read_on_the_host, device))
    if device.type == "cuda":
        checks.check("host copies", functools.partial(_copies_run_beside, device))
    for strict in (False, True):
        how = "strict" if strict else "direct"
        checks.check(f"random numbers, {how}", functools.partial(_as_eager, dropout, x, strict=strict))
    checks.check("checkpoint, strict", functools.partial(_as_eager, _Checkpointed(dropout), x, strict=True))
    with torch.autocast(device.type, torch.bfloat16):
        checks.check("autocast, direct", functools.partial(_as_eager, dropout, x, strict=False))


class _Checkpointed(nn.Module):
    """Computes its part again in the backward, with the random numbers of the forward."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.part, x, use_reentrant=False)


def _nothing_is_read_on_the_host(device: torch.device) -> Found:
    """A stage that holds all its experts, once warm: PyTorch raises an error where the host would wait for the GPU."""
    pair = Pair(Case(blocks=2, sequence=64), None, device)
    plan = ap.overlap(pair.both, policy="sequential")
    reads = [row.node.name for row in ap.region_table(pair.both) if row.kind == "host"]
    plan.run(pair.values)
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        result = plan.run(pair.values)
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    wrong = [*reads, *pair.differences(result)]
    told = ", ".join(wrong) or "none"
    return Found(not wrong, f"{len(plan.order)} nodes; host reads, and differences from eager: {told}")


def _copies_run_beside(device: torch.device) -> Found:
    """A number that was copied to pinned memory is there before computation that was issued later has ended."""
    counts = torch.arange(64, device=device)
    matrix = torch.ones(8192, 8192, device=device, dtype=torch.bfloat16)
    copies, right, beside = PinnedCopies(), 0, 0
    for _ in range(_COPIES):
        counts = counts + 1
        started = copies.start(counts, counts.dtype)
        expected = counts.clone()
        for _ in range(8):
            matrix @ matrix
        ended = torch.cuda.Event()
        ended.record()
        found = copies.finish(started)
        beside += not ended.query()
        right += torch.equal(found, expected.cpu())
    told = f"{right} of {_COPIES} right, {beside} of them before the products that were issued later had ended"
    return Found(right == _COPIES and beside >= _COPIES - 1, told)  # the first may load kernels


def _as_eager(module: nn.Module, x: Tensor, *, strict: bool) -> Found:
    """Output, gradients, and the generators' states after forward and after backward are eager's."""
    x = x.clone().requires_grad_()
    tangent = torch.ones_like(x)
    graphs = ap.trace(module, (x,), strict=strict)
    if graphs.backward is None:
        return Found(ok=False, detail="the trace has no backward")
    torch.manual_seed(_SEED)
    output = module(x)
    states = {"state after forward": _random_state(x.device)}
    gradients = torch.autograd.grad(output, [*module.parameters(), x], tangent.to(output.dtype))
    states["state after backward"] = _random_state(x.device)
    names = [*(name for name, _ in module.named_parameters()), "input"]
    expected = {"output": output.detach(), **states, **dict(zip(names, gradients, strict=True))}

    torch.manual_seed(_SEED)
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    values |= graphs.forward(values)
    found = {"output": values["output"], "state after forward": _random_state(x.device)}
    result = graphs.backward({**values, "tangent.output": tangent.to(output.dtype)})
    found |= graphs.parameter_gradients(result)
    found["input"] = next(value for name, value in result.items() if name.startswith("input_grad."))
    found["state after backward"] = _random_state(x.device)
    wrong = differing(found, expected)
    return Found(not wrong, f"{len(expected)} values; differing from eager: {', '.join(wrong) or 'none'}")


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
