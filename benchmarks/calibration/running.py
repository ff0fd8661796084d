"""One rank that runs schedules on the paced model: ``python -m benchmarks.calibration.running RUNS_JSON``."""

import json
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.errors import AnnopipeError
from benchmarks.alternation import alternated, raise_priority, raise_to_real_time
from benchmarks.calibration.plan import Runs
from benchmarks.calibration.predicting import Planner, paces
from benchmarks.launch import end_rank
from benchmarks.moe.gradients import Fingerprints, differing, fingerprints, gathered
from benchmarks.moe.groups import Groups, start_groups
from benchmarks.moe.model import blocks_module, mean_square
from benchmarks.moe.steps import Step, batch
from benchmarks.progress import tell, tell_result

__all__ = ["main"]


def main() -> None:
    """Run what the command line gives; the result: seconds by schedule, predicted and run, and different gradients."""
    runs = Runs.from_json(sys.argv[1])
    torch.set_num_threads(1)
    raise_priority(20)
    raise_to_real_time()
    groups = start_groups(runs.case)
    try:
        planned = _planned(runs, groups) if dist.get_rank() == 0 else {}
        steps = {name: _step(name, path, runs, groups) for name, path in runs.configs.items()}
        times, wrong = _alternated(steps, runs.case.rounds, f"expert rank {dist.get_rank(groups.experts)}")
    except AnnopipeError as error:  # the parent shows the message, not where it was raised
        sys.exit(f"{type(error).__name__}: {error}")
    tell_result(json.dumps({"seconds": times, "planned": planned, "gradients_differ": wrong}))
    dist.barrier()
    end_rank()


def _planned(runs: Runs, groups: Groups) -> dict[str, float]:
    tell("simulating the schedules with the plans of the graphs that will run")
    planner = Planner(runs.case, runs.measured, groups.experts)
    return {name: planner.seconds(ap.RunConfig.load(path)) for name, path in runs.configs.items()}


def _step(name: str, path: str, runs: Runs, groups: Groups) -> Step:
    tell(f"preparing {name}")
    case, measured = runs.case, runs.measured
    config = ap.RunConfig.load(path)
    held = config.schedule.placement.stages_on[groups.pipeline_rank]
    modules: list[nn.Module | None] = [
        blocks_module(case, range(start, end), measured.stretch_s, groups.experts) if stage in held else None
        for stage, (start, end) in enumerate(config.layers)
    ]
    pipe = ap.Pipeline.from_config(
        path,
        modules,
        group=groups.pipeline,
        loss_fn=mean_square,
        costs=paces(case, measured).costs,
        plan_group=groups.experts,
    )
    inputs, target = batch(case)
    pipe.prepare(inputs, target=target)
    return Step(partial(pipe.step, inputs, target=target), [module for module in modules if module is not None])


def _alternated(steps: dict[str, Step], rounds: int, where: str) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    first: Fingerprints = {}
    wrong: dict[str, list[str]] = {}
    for number, name, taken in alternated({name: step.run for name, step in steps.items()}, rounds):
        tell(f"{f'round {number + 1} of {rounds}' if number >= 0 else 'warm-up'}: {name}")
        found = gathered(fingerprints(steps[name].modules, where))
        first = first or found
        if different := differing(first, found):
            wrong[name] = different
        if number >= 0:
            times[name].append(taken.clock_s)
    return times, wrong


if __name__ == "__main__":
    main()
