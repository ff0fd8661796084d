"""What needs a real GPU, on one GPU in under four minutes: ``python -m benchmarks.gpu_check [--json PATH]``.

One rank runs the overlap job's pair on the GPU. With a single GPU there is nobody to send tokens to, so the all-to-
all is a copy through pinned host memory on the copy engines (``benchmarks/groups/pinned.py``): it takes time, runs
beside computation, and the table says "copies through pinned host memory". Checked: results bitwise equal to eager
for every policy; launches that do not block the host; copies that run beside computation; every policy against
sequential and eager; costs by roofline of this device; a stress with skewed routing and changing token counts.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tabulate import tabulate

import annopipe as ap
from annopipe.errors import AnnopipeError
from benchmarks.groups import pinned
from benchmarks.pair.case import Case
from benchmarks.pair.limits import judge
from benchmarks.pair.report import table
from benchmarks.pair.stage import Pair, differing
from benchmarks.pair.worker import measure_case

__all__ = ["main"]

_BUDGET_S = 220.0
_STRESS = 50


def main() -> None:
    """Run the checks and print one table; exit code 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description="Check annopipe on one GPU.")
    parser.add_argument("--json", type=Path, help="write the results as JSON too")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu runs the same checks without a GPU, to test the script",
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu_check: no GPU here (torch.cuda.is_available()); --device cpu tests the script itself\n")
    torch.set_num_threads(1)
    if arguments.device == "cuda":  # only these kernels add in a fixed order in the backward
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    pinned.register()
    dist.init_process_group("pinned", store=dist.HashStore(), rank=0, world_size=1)
    results = run_checks(torch.device(arguments.device))
    dist.destroy_process_group()
    print(results["machine"])
    print(tabulate([(c["check"], "ok" if c["ok"] else "FAILED", c["detail"]) for c in results["checks"]]))
    if results["pair"]:
        print(table([results["pair"]]))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not all(check["ok"] for check in results["checks"]):
        raise SystemExit(1)


def run_checks(device: torch.device) -> dict[str, Any]:
    """All checks; each is one entry with what was found."""
    started = time.perf_counter()
    on_gpu = device.type == "cuda"
    sizes = {"hidden": 2048, "expert_hidden": 1024, "sequence": 2048} if on_gpu else {"hidden": 64, "sequence": 32}
    case = Case(network="pinned", rounds=5, **sizes)  # type: ignore[arg-type]
    checks: list[dict[str, Any]] = []

    def check(name: str, found: Callable[[], tuple[bool, str]]) -> None:
        if time.perf_counter() - started > _BUDGET_S:
            checks.append({"check": name, "ok": False, "detail": "not run: the time budget was spent"})
            return
        try:
            ok, detail = found()
        except (AnnopipeError, RuntimeError) as error:  # the other checks go on, and the table is not lost
            ok, detail = False, f"{type(error).__name__}: {error}"
        checks.append({"check": name, "ok": ok, "detail": detail})

    measured: dict[str, Any] = {}

    def pair() -> tuple[bool, str]:
        measured.update(measure_case(case, device, lambda _text: None))
        return measured["bitwise_equal"], f"bitwise equal to eager: {', '.join(case.policies)}"

    check("results", pair)
    if on_gpu:
        check("policies", lambda: _policies_are_no_slower(measured))
        check("launch", lambda: _launch_returns_at_once(device))
        check("overlap", lambda: _copies_run_beside_computation(device))
    check("costs", lambda: _roofline_knows_this_device(case, device, measured))
    check("stress", lambda: _stress(dataclasses.replace(case, routing="skewed"), device))
    name = torch.cuda.get_device_name(device) if on_gpu else "no GPU: the script's own test"
    machine = f"{name}, torch {torch.__version__}, {time.perf_counter() - started:.0f} s"
    return {"machine": machine, "checks": checks, "pair": measured}


def _policies_are_no_slower(measured: dict[str, Any]) -> tuple[bool, str]:
    """Every order against sequential graphs, and these against eager, beyond the spread of the repetitions."""
    limits = judge([measured]) if measured else []
    detail = "; ".join(f"{x.order} {x.what}: {x.found:.3f}, limit {x.highest:.3f}" for x in limits)
    return bool(limits) and all(x.kept for x in limits), detail or "no measurement"


def _launch_returns_at_once(device: torch.device) -> tuple[bool, str]:
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
    return issued < 0.5 * whole, f"launch {issued * 1e3:.2f} ms of a copy of {whole * 1e3:.2f} ms"


def _copies_run_beside_computation(device: torch.device) -> tuple[bool, str]:
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
    return together < 0.85 * (copy + computation), detail


def _roofline_knows_this_device(case: Case, device: torch.device, measured: dict[str, Any]) -> tuple[bool, str]:
    """It has an entry in the table of hardware; roofline's computation beside the measured one is for the reader."""
    pair = Pair(case, dist.group.WORLD, device)
    costs = ap.costs.roofline(pair.both)
    computed = ap.overlap(pair.both, "sequential", costs).lower_bound.computation
    seconds = measured.get("computation_s", 0.0)
    return computed > 0, f"{costs.source}: computation {computed * 1e3:.2f} ms, measured {seconds * 1e3:.2f} ms"


def _stress(case: Case, device: torch.device) -> tuple[bool, str]:
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
    return wrong == 0, f"{_STRESS} runs with changing routing, {wrong} differ from program order"


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


if __name__ == "__main__":
    main()
