"""One rank of the MoE job: ``python -m benchmarks.moe.worker CASE_JSON`` under the job's launcher.

Rank 0 prints progress as lines that start with "progress:", and its result as one line of JSON that starts with
"result:".
"""

import json
import os
import statistics
import sys
from typing import Any

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.errors import AnnopipeError
from benchmarks.alternation import alternated, raise_priority
from benchmarks.launch import end_rank
from benchmarks.moe.case import MoeCase
from benchmarks.moe.gradients import Fingerprints, differing, fingerprints, gathered
from benchmarks.moe.groups import Groups, hand_over_s, measured_paces, start_groups
from benchmarks.moe.predicting import Predictor
from benchmarks.moe.steps import Step, eager_step, our_step, schedule_of, stages_of

__all__ = ["main", "measure_case"]

_Steps = dict[tuple[str, str], Step]  # by runtime and schedule


def main() -> None:
    """Measure the case that the command line gives."""
    try:
        _run(MoeCase.from_json(sys.argv[1]))
    except AnnopipeError as error:  # the parent shows the message, not where it was raised
        sys.exit(f"{type(error).__name__}: {error}")


def _run(case: MoeCase) -> None:
    torch.set_num_threads(1)
    raise_priority(20)
    groups = start_groups(case)
    result = measure_case(case, groups)
    if dist.get_rank() == 0:
        print("result:" + json.dumps(result), flush=True)
    dist.barrier()
    end_rank()


def measure_case(case: MoeCase, groups: Groups) -> dict[str, Any]:
    """Everything the table shows, as plain data; simulated times on rank 0 only."""
    seconds, paces = measured_paces(case, groups)
    handed_s = hand_over_s(case, groups)
    predictor = Predictor(case, groups, seconds, handed_s)
    steps: _Steps = {}
    simulated: dict[str, ap.Timeline] = {}
    for name in case.schedules:
        _progress(f"preparing {name}")
        schedule = schedule_of(name, case)
        costs = paces.costs if case.paced else predictor.measured(schedule)
        modules = stages_of(schedule, case, seconds, groups)
        steps["annopipe", name] = our_step(schedule, modules, case, groups, costs)
        if dist.get_rank() == 0:
            simulated[name] = predictor.timeline(schedule, costs)
    for name in case.eager:
        modules = stages_of(schedule_of(name, case), case, seconds, groups)
        steps["eager", name] = eager_step(name, modules, case, groups)
    for name in case.eager if case.attaches else ():
        schedule = schedule_of(name, case)
        costs = paces.costs if case.paced else predictor.measured(schedule)
        modules = stages_of(schedule, case, seconds, groups)
        steps["attached", name] = eager_step(name, modules, case, groups, costs)
    times, wrong = _alternated(steps, case.rounds, groups)
    rows = [_row(runtime, name, found, simulated) for (runtime, name), found in times.items()]
    return {
        "case": json.loads(case.to_json()),
        "cores": len(os.sched_getaffinity(0)),
        "transfer_s": paces.transfer_s,
        "stretch_s": paces.stretch_s,
        "hand_over_s": handed_s,
        "gradients_agree": not wrong,
        "gradients_differ": wrong,
        "rows": rows,
    }


def _alternated(
    steps: _Steps, rounds: int, groups: Groups
) -> tuple[dict[tuple[str, str], list[float]], dict[str, list[str]]]:
    """Seconds of every step in every round; and which of its gradients are not those of the first step, by step."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    first: Fingerprints = {}
    wrong: dict[str, list[str]] = {}
    for number, key, taken in alternated({key: step.run for key, step in steps.items()}, rounds):
        name = " ".join(key)
        _progress(f"{f'round {number + 1} of {rounds}' if number >= 0 else 'warm-up'}: {name}")
        found = gathered(fingerprints(steps[key].modules, f"expert rank {dist.get_rank(groups.experts)}"))
        first = first or found
        if different := differing(first, found):
            wrong[name] = different
        if number >= 0:
            times[key].append(taken.clock_s)
    return times, wrong


def _row(runtime: str, name: str, found: list[float], simulated: dict[str, ap.Timeline]) -> dict[str, Any]:
    timeline = simulated.get(name) if runtime == "annopipe" else None
    return {
        "runtime": runtime,
        "schedule": name,
        "measured_s": statistics.median(found),
        "fastest_s": min(found),
        "slowest_s": max(found),
        "simulated_s": timeline.makespan if timeline else None,
        "bubble": timeline.bubble if timeline else None,
    }


def _progress(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"progress:{text}", flush=True)


if __name__ == "__main__":
    main()
