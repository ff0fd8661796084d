"""One rank of the overlap job: ``python -m benchmarks.pair.worker CASE_JSON`` under the job's launcher or torchrun.

Rank 0 prints progress as lines that start with "progress:", and its result as one line of JSON that starts with
"result:".
"""

import dataclasses
import functools
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.errors import AnnopipeError
from annopipe.processors import processors
from annopipe.simulation import html, png
from benchmarks.alternation import raise_priority
from benchmarks.launch import end_rank
from benchmarks.pair.case import Case
from benchmarks.pair.network import start_network
from benchmarks.pair.paced import paced_costs, run_paced
from benchmarks.pair.stage import Pair
from benchmarks.pair.timing import longest, timed

__all__ = ["main", "measure_case"]


def main() -> None:
    """Measure the case that the command line gives."""
    try:
        _run(Case.from_json(sys.argv[1]))
    except AnnopipeError as error:  # the parent shows the message, not where it was raised
        sys.exit(f"{type(error).__name__}: {error}")


def _run(case: Case) -> None:
    torch.set_num_threads(1)
    raise_priority(10)
    device = start_network(case)
    result = measure_case(case, device, _progress)
    if dist.get_rank() == 0:
        print("result:" + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    end_rank()


def measure_case(case: Case, device: torch.device, progress: Callable[[str], None]) -> dict[str, Any]:
    """Everything the table shows, as plain data; the same on every rank."""
    group = dist.group.WORLD
    progress("tracing the stage")
    started = time.perf_counter()
    pair = Pair(case, group, device)
    trace_s = time.perf_counter() - started
    gc.freeze()  # the graphs stay; a full collection over them would fall into a measurement
    progress("measuring node costs")
    costs = ap.costs.measure(pair.both, pair.values, group, repeat=5)
    calls = ap.costs.record_launches(pair.both, pair.values)
    if case.paced:
        costs = paced_costs(costs, case.ratio, case.computation_s)
    progress("planning")
    plans = {name: ap.overlap(pair.both, policy=name, costs=costs, group=group) for name in case.policies}
    wrong = _wrong_anywhere({name: pair.differences(plan.run(pair.values)) for name, plan in plans.items()})
    runs = _paced_runs(plans, calls) if case.paced else _real_runs(pair, plans, device)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(case.rounds + 1):  # the first round warms up
        progress(f"round {number} of {case.rounds}" if number else "warm-up round")
        for name, run in runs.items():
            seconds = longest(run, device)
            if number:
                times[name].append(seconds)
    gc.unfreeze()
    if case.output and dist.get_rank() == 0:
        timelines, title = {n: p.timeline for n, p in plans.items()}, _title(case)
        html.write(Path(case.output) / "timeline.html", timelines, title)
        if importlib.util.find_spec("matplotlib"):
            png.write(Path(case.output) / "timeline.png", timelines, title)
    loads = torch.tensor(pair.expert_loads(), device=device)
    dist.all_reduce(loads)
    return {**_summary(case, plans, times, wrong, trace_s), "expert_loads": loads.tolist()}


def _title(case: Case) -> str:
    kind = "paced" if case.paced else "real"
    return f"annopipe overlap, simulated: {case.blocks} blocks, {dist.get_world_size()} ranks, costs of a {kind} run"


def _wrong_anywhere(mine: dict[str, list[str]]) -> dict[str, list[str]]:
    """What differs from eager autograd, by policy, on all ranks: every rank has gradients of its own."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {name: [f"rank {r}: {v}" for r, found in enumerate(everyone) for v in found[name]] for name in mine}


def _summary(
    case: Case, plans: dict[str, Any], times: dict[str, list[float]], wrong: dict[str, list[str]], trace_s: float
) -> dict[str, Any]:
    first = next(iter(plans.values()))
    bound = first.lower_bound
    rows = []
    for name, seconds in times.items():
        plan = plans.get(name)
        rows.append(
            {
                "name": name,
                "measured_s": statistics.median(seconds),
                "fastest_s": min(seconds),
                "slowest_s": max(seconds),
                "times_s": list(seconds),
                "simulated_s": plan.timeline.makespan if plan else None,
                "hidden_share": plan.timeline.hidden_share if plan and plan.timeline.comm_time else None,
                "exposed_s": plan.timeline.exposed_comm if plan else None,
                "reason": plan.reason if plan else "",
            }
        )
    return {
        "case": json.loads(case.to_json()),
        "ranks": dist.get_world_size(),
        "cores": processors(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "nodes": len(first.order),
        "trace_s": trace_s,
        "bound_s": float(bound),
        "computation_s": bound.computation,
        "communication_s": bound.communication,
        "critical_path_s": bound.critical_path,
        "bitwise_equal": not any(wrong.values()),
        "wrong": wrong,
        "rows": rows,
        "regions": {name: [dataclasses.asdict(r) for r in plan.timeline.regions] for name, plan in plans.items()},
    }


def _real_runs(pair: Pair, plans: dict[str, Any], device: torch.device) -> dict[str, Callable[[], float]]:
    def eager() -> float:
        ready = pair.eager_backward_ready()
        dist.barrier()
        return timed(lambda: pair.eager(*ready), device)

    def planned(plan: Any) -> Callable[[], float]:
        return lambda: timed(lambda: plan.run(pair.values), device)

    return {"eager": eager, **{name: planned(plan) for name, plan in plans.items()}}


def _paced_runs(plans: dict[str, Any], calls: dict[str, ap.costs.LaunchCall]) -> dict[str, Callable[[], float]]:
    programs = {name: plan.program() for name, plan in plans.items()}
    return {name: functools.partial(run_paced, program, calls) for name, program in programs.items()}


def _progress(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"progress:{text}", flush=True)


if __name__ == "__main__":
    main()
