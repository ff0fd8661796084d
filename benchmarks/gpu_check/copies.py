"""Checks of the overlap job's pair where the network is copies through pinned host memory.

With a single GPU there is nobody to send tokens to, so the all-to-all is a copy on the copy engines
(``benchmarks/groups/pinned.py``): it takes time, runs beside computation, and the table says "copies through pinned
host memory". Checked: results bitwise equal to eager for every policy; launches that do not block the host; copies that
run beside computation; every policy against sequential and eager; costs by roofline of this device; a stress with
skewed routing and changing token counts.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import annopipe as ap
from benchmarks.gpu_check.checklist import Checklist, Found
from benchmarks.groups import pinned
from benchmarks.pair.case import Case
from benchmarks.pair.limits import judge
from benchmarks.pair.stage import Pair, differing
from benchmarks.pair.worker import measure_case

__all__ = ["run"]

_STRESS = 50
# On a GPU: kernels of 20 ms and copies of half as long, so that neither hides the other whatever the order, and the
# host, which issues some 900 kernels, is well ahead.
_SIZES = {"hidden": 2048, "expert_hidden": 8192, "experts": 4, "top_k": 1, "batch": 4, "sequence": 2048}
_SMALL_SIZES = {"hidden": 64, "sequence": 32}


def run(checks: Checklist, device: torch.device) -> None:
    """All checks of this group."""
    pinned.register()
    dist.init_process_group("pinned", store=dist.HashStore(), rank=0, world_size=1)
    on_gpu = device.type == "cuda"
    sizes: dict[str, Any] = _SIZES if on_gpu else _SMALL_SIZES
    case = Case(network="pinned", rounds=5, **sizes)
    measured: dict[str, Any] = {}

    def pair() -> Found:
        measured.update(measure_case(case, device, lambda _text: None))
        wrong = [f"{policy}: {', '.join(names)}" for policy, names in measured["wrong"].items() if names]
        detail = f"{', '.join(case.policies)} differ from eager in: {'; '.join(wrong) or 'nothing'}"
        return Found(measured["bitwise_equal"], detail, {"pair": measured})

    checks.check("results", pair)
    if on_gpu:
        checks.check("policies", lambda: _policies_are_no_slower(measured))
        checks.check("launch", functools.partial(_launch_returns_at_once, device))
        checks.check("overlap", functools.partial(_copies_run_beside_computation, device))
    checks.check("costs", lambda: _roofline_knows_this_device(case, device, measured))
    checks.check("stress", functools.partial(_stress, dataclasses.replace(case, routing="skewed"), device))
    dist.destroy_process_group()


def _policies_are_no_slower(measured: dict[str, Any]) -> Found:
    """Every order against sequential graphs, and these against eager, beyond the spread of the repetitions."""
    limits = judge([measured]) if measured else []
    detail = "; ".join(f"{x.order} {x.what}: {x.found:.3f}, limit {x.highest:.3f}" for x in limits)
    return Found(bool(limits) and all(x.kept for x in limits), detail or "no measurement")


def _launch_returns_at_once(device: torch.device) -> Found:
    """The host must be free long before the copy is over."""
    call, seconds = _exchange(device, rows=1 << 15), []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call.launch()
        issued = time.perf_counter() - begun
        torch.cuda.synchronize()
        seconds.append((issued, time.perf_counter() - begun))
    issued, whole = min(seconds)
    return Found(issued < 0.5 * whole, f"launch {issued * 1e3:.2f} ms of a copy of {whole * 1e3:.2f} ms")


def _copies_run_beside_computation(device: torch.device) -> Found:
    """Together they must take clearly less than one after the other."""
    call = _exchange(device, rows=1 << 15)
    left = torch.randn(4096, 4096, device=device)

    def compute() -> None:
        for _ in range(20):
            torch.mm(left, left)

    def both() -> None:
        launched = call.launch()
        compute()
        ap.costs.wait_for(launched)

    copy, computation, together = (_seconds(run) for run in (call.run, compute, both))
    detail = f"copy {copy * 1e3:.1f} ms, computation {computation * 1e3:.1f} ms, together {together * 1e3:.1f} ms"
    return Found(together < 0.85 * (copy + computation), detail)


def _roofline_knows_this_device(case: Case, device: torch.device, measured: dict[str, Any]) -> Found:
    """It has an entry in the table of hardware; roofline's computation beside the measured one is for the reader."""
    pair = Pair(case, dist.group.WORLD, device)
    costs = ap.costs.roofline(pair.both)
    computed = ap.overlap(pair.both, "sequential", costs).lower_bound.computation
    seconds = measured.get("computation_s", 0.0)
    detail = f"{costs.source}: computation {computed * 1e3:.2f} ms, measured {seconds * 1e3:.2f} ms"
    return Found(computed > 0, detail)


def _stress(case: Case, device: torch.device) -> Found:
    """One plan, other tokens each time (so other splits): always bitwise equal to program order."""
    pair = Pair(case, dist.group.WORLD, device)
    plan = ap.overlap(pair.both, policy="alternate")
    wrong = 0
    for number in range(_STRESS):
        generator = torch.Generator().manual_seed(number)
        values = {
            **pair.values,
            "F.input.x": torch.randn(pair.forward_input.shape, generator=generator).to(pair.forward_input),
        }
        expected = pair.both(values)
        wrong += bool(differing(plan.run(values), expected))
    return Found(wrong == 0, f"{_STRESS} runs with changing routing, {wrong} differ from program order")


def _exchange(device: torch.device, rows: int) -> ap.costs.LaunchCall:
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    arguments = (torch.randn(rows, 2048, device=device), [rows], [rows], name)
    return ap.costs.LaunchCall(torch.ops._c10d_functional.all_to_all_single, arguments, {}, name)


def _seconds(run: Callable[[], None]) -> float:
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]
