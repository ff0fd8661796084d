"""Checks of traced DeepSeek-V3-style stages over a process group of one rank: NCCL, on a CPU gloo.

With one rank every expert is here, and an all-to-all is a copy that NCCL makes on a stream of its own: the order of
launches and waits, and the lifetime of tensors across streams, are those of a larger job.
"""

import dataclasses
import functools
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

import annopipe as ap
from benchmarks.gpu_check.checklist import Checklist, Found
from benchmarks.pair.case import Case
from benchmarks.pair.stage import Pair, differing
from benchmarks.pair.timing import timed

__all__ = ["run"]


_TINY = Case(blocks=1, sequence=32, hidden=64, expert_hidden=64, experts=8, top_k=2)
_MEDIUM = Case(blocks=2, batch=2, sequence=1024, hidden=1024, expert_hidden=512, experts=32, top_k=4)
_POLICIES = tuple(name for name in ap.policies() if name != "optimal")  # which takes small problems only
_SKEWED = dataclasses.replace(_TINY, experts=32, top_k=1, routing="skewed", skew=2.0)


def run(checks: Checklist, device: torch.device) -> None:
    """All checks of this group."""
    cases = {"tiny": _TINY}
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
        cases["medium"] = _MEDIUM
    else:
        dist.init_process_group("gloo")
    for name, case in cases.items():
        for strict in (False, True):
            equal = functools.partial(_equal_to_eager, case, device, strict=strict)
            checks.check(f"{name}, {'strict' if strict else 'direct'}", equal)
    largest = list(cases.values())[-1]
    checks.check("skewed routing", functools.partial(_equal_to_eager, _SKEWED, device, strict=False))
    checks.check("measured costs", functools.partial(_costs_are_measured, largest, device))
    checks.check("planning", functools.partial(_policies_plan, largest, device))
    dist.destroy_process_group()


def _equal_to_eager(case: Case, device: torch.device, *, strict: bool) -> Found:
    """Eager a second time, the graphs in program order, both halves of backward, and every policy's plan."""
    group = dist.group.WORLD
    started = time.perf_counter()
    pair = Pair(case, group, device, strict=strict)
    trace_s = time.perf_counter() - started
    in_order = pair.both(pair.values)
    costs = ap.costs.roofline(pair.both)
    wrong = {
        "eager, again": _differences_of_eager(pair),
        "program order": pair.differences(in_order),
        "halves of backward": pair.differences({**_halves(pair), "F.output": in_order["F.output"]}),
    }
    for policy in _POLICIES:
        plan = ap.overlap(pair.both, policy=policy, costs=costs, group=group)
        wrong[policy] = pair.differences(plan.run(pair.values))
    told = "; ".join(f"{run}: {_few(names)}" for run, names in wrong.items() if names)
    size = f"{len(costs.seconds)} nodes, traced in {trace_s:.1f} s"
    idle = sum(load == 0 for loads in pair.expert_loads() for load in loads)
    experts = f"{idle} idle experts, " if idle else ""
    detail = f"{size}, {experts}{len(wrong)} runs differ from eager in: {told or 'nothing'}"
    return Found(not told, detail, {"trace_s": trace_s, "nodes": len(costs.seconds), "wrong": wrong})


def _differences_of_eager(pair: Pair) -> list[str]:
    """Where a kernel adds in no fixed order, nothing can be equal to eager, eager itself included."""
    runs = []
    for _ in range(2):
        gradients, output = pair.eager(*pair.eager_backward_ready())
        runs.append({"output": output, **{str(number): gradient for number, gradient in enumerate(gradients)}})
    return differing(*runs)


def _halves(pair: Pair) -> dict[str, Any]:
    half, rest = pair.graphs.backward_input, pair.graphs.backward_weight
    if half is None or rest is None:
        return {}
    values = ap.out_of_lane(pair.values, "B")
    first = half(values)
    return ap.into_lane({**first, **rest({**values, **first})}, "B")


def _costs_are_measured(case: Case, device: torch.device) -> Found:
    """Every node has a cost, measuring draws no random numbers, and the plan made from the costs is still right."""
    pair = Pair(case, dist.group.WORLD, device)
    before = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    costs = ap.costs.measure(pair.both, pair.values, dist.group.WORLD)
    after = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    plan = ap.overlap(pair.both, "auto", costs, group=dist.group.WORLD)
    wrong = pair.differences(plan.run(pair.values))
    sequential = ap.overlap(pair.both, "sequential", costs, group=dist.group.WORLD)
    whole_s = statistics.median(timed(lambda: sequential.run(pair.values), device) for _ in range(5))
    launches = sum(row.kind == "launch" for row in ap.region_table(pair.both))
    ok = torch.equal(before, after) and not wrong and len(costs.issue) == launches
    ok = ok and all(seconds >= 0 for seconds in costs.seconds.values())
    ok = ok and all(costs.seconds[key] > 0 for key in costs.issue)
    bound = plan.lower_bound
    figures = {"computation_s": bound.computation, "communication_s": bound.communication, "whole_s": whole_s}
    detail = (
        f"{len(costs.seconds)} nodes, {launches} launches: computation {bound.computation * 1e3:.2f} ms node by node, "
        f"communication {bound.communication * 1e3:.2f} ms, one run {whole_s * 1e3:.2f} ms; differing from eager: "
        f"{_few(wrong) or 'nothing'}"
    )
    return Found(ok, detail, figures)


def _policies_plan(case: Case, device: torch.device) -> Found:
    """Without costs a plan takes this device's roofline; no policy beats the bound, and auto is no worse than any."""
    pair = Pair(case, dist.group.WORLD, device)
    source = ap.costs.roofline(pair.both).source
    makespans, seconds, bound = {}, {}, 0.0
    for policy in _POLICIES:
        started = time.perf_counter()
        plan = ap.overlap(pair.both, policy=policy, group=dist.group.WORLD)
        seconds[policy] = time.perf_counter() - started
        makespans[policy], bound = plan.timeline.makespan, float(plan.lower_bound)
    shortest = min(seconds for policy, seconds in makespans.items() if policy != "search")
    ok = min(makespans.values()) >= bound * (1 - 1e-9) and makespans["auto"] <= shortest * (1 + 1e-9)
    ok = ok and makespans["search"] <= makespans["auto"] * (1 + 1e-9)
    told = ", ".join(f"{policy} {seconds[policy]:.2f} s" for policy in makespans)
    detail = (
        f"{source}: sequential {makespans['sequential'] * 1e3:.2f} ms, auto {makespans['auto'] * 1e3:.2f} ms, bound "
        f"{bound * 1e3:.2f} ms; planned in {told}"
    )
    return Found(ok, detail, {"makespan_s": makespans, "planning_s": seconds, "bound_s": bound})


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
