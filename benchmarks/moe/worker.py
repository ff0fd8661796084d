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
from benchmarks.moe.nano import Moments, chosen, least_exposed_s, phase_rows
from benchmarks.moe.predicting import Predictor
from benchmarks.moe.steps import Step, eager_step, our_step, schedule_of, stages_of
from benchmarks.progress import tell, tell_result

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
    tell_result(json.dumps(result))
    dist.barrier()
    end_rank()


def measure_case(case: MoeCase, groups: Groups) -> dict[str, Any]:
    """Everything the table shows, as plain data; simulated times on rank 0 only."""
    seconds, paces = measured_paces(case, groups)
    handed_s = hand_over_s(case, groups)
    predictor = Predictor(case, groups, seconds, handed_s)
    steps: _Steps = {}
    simulated: dict[str, ap.Timeline] = {}
    nano: list[dict[str, Any]] = []
    for name in case.schedules:
        tell(f"preparing {name}")
        schedule = schedule_of(name, case)
        costs = paces.costs if case.paced else predictor.measured(schedule)
        action_costs = predictor.action_costs(schedule, costs) if dist.get_rank() == 0 else None
        variants = {name: schedule}
        if case.nano_batches > 1:
            tell(f"choosing nano-batches for {name}")
            split, reason = chosen(schedule, action_costs, case)
            variants[split.name] = split
            nano.append({"schedule": name, "with": split.name, "reason": reason})
            if action_costs is not None:
                nano[-1]["least_exposed_s"] = least_exposed_s(
                    schedule, predictor.graphs(schedule), costs, case.nano_batches
                )
        for own, variant in variants.items():
            modules = stages_of(variant, case, seconds, groups)
            steps["annopipe", own] = our_step(variant, modules, case, groups, costs)
            if action_costs is not None:
                simulated[own] = ap.simulate(variant, action_costs)
    for name in case.eager:
        modules = stages_of(schedule_of(name, case), case, seconds, groups)
        steps["eager", name] = eager_step(name, modules, case, groups)
    for name in case.eager if case.attaches else ():
        schedule = schedule_of(name, case)
        costs = paces.costs if case.paced else predictor.measured(schedule)
        modules = stages_of(schedule, case, seconds, groups)
        steps["attached", name] = eager_step(name, modules, case, groups, costs)
    moments: dict[str, Moments] = {own: [] for _, own in steps}
    times, wrong = _alternated(steps, case.rounds, groups, moments)
    for entry in nano:
        both = {"before": entry["schedule"], "after": entry["with"]}
        timelines = {when: simulated[own] for when, own in both.items() if own in simulated}
        entry["phases"] = phase_rows(timelines, {when: moments[own] for when, own in both.items()}, case.pipeline_ranks)
    rows = [_row(runtime, name, found, simulated) for (runtime, name), found in times.items()]
    return {
        "case": json.loads(case.to_json()),
        "cores": len(os.sched_getaffinity(0)),
        "transfer_s": paces.transfer_s,
        "transfer_latency_s": paces.latency_s,
        "transfer_issue_s": paces.issue_s,
        "stretch_s": paces.stretch_s,
        "hand_over_s": handed_s,
        "gradients_agree": not wrong,
        "gradients_differ": wrong,
        "rows": rows,
        "nano_batches": nano,
    }


def _alternated(
    steps: _Steps, rounds: int, groups: Groups, moments: dict[str, Moments]
) -> tuple[dict[tuple[str, str], list[float]], dict[str, list[str]]]:
    """Seconds of every step in every round; and which of its gradients are not those of the first step, by step.

    Notes when the phases of steps with a clock ended.
    """
    times: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    first: Fingerprints = {}
    wrong: dict[str, list[str]] = {}
    for number, key, taken in alternated({key: step.run for key, step in steps.items()}, rounds):
        name = " ".join(key)
        tell(f"{f'round {number + 1} of {rounds}' if number >= 0 else 'warm-up'}: {name}")
        found = gathered(fingerprints(steps[key].modules, f"expert rank {dist.get_rank(groups.experts)}"))
        first = first or found
        if different := differing(first, found):
            wrong[name] = different
        if number >= 0:
            times[key].append(taken.clock_s)
            if (clock := steps[key].clock) is not None:
                moments[key[1]].append((clock.warmed_up_s, clock.not_steady_s, taken.clock_s))
    return times, wrong


def _row(runtime: str, name: str, found: list[float], simulated: dict[str, ap.Timeline]) -> dict[str, Any]:
    timeline = simulated.get(name) if runtime == "annopipe" else None
    return {
        "runtime": runtime,
        "schedule": name,
        "measured_s": statistics.median(found),
        "fastest_s": min(found),
        "slowest_s": max(found),
        "times_s": found,
        "simulated_s": timeline.makespan if timeline else None,
        "bubble": timeline.bubble if timeline else None,
    }


if __name__ == "__main__":
    main()
