"""One rank of the runtime job: ``python -m benchmarks.runtime.worker SETTINGS_JSON`` under the job's launcher.

Rank 0 prints its result as one line of JSON that starts with "result:".
"""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from benchmarks.alternation import Times, alternated, raise_priority
from benchmarks.eager_runtime import eager_step
from benchmarks.launch import end_rank

__all__ = ["main"]

_WIDTH = 4
_WARMUP = 3
Step = Callable[[], Any]
_Key = tuple[str, int, str]  # schedule, parameters of a stage, runtime


class Tiny(nn.Module):
    """A stage that computes next to nothing, with as many parameters as it is told to have, at least 2.

    All of them have gradients, at the cost of one operation for all: what is left is what a runtime does for each.
    """

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.rest = nn.ModuleList(nn.Linear(1, 1) for _ in range((parameters - 2) // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One product of tiny matrices, and one sum."""
        result: torch.Tensor = self.linear(x)
        if not self.rest:
            return result
        return result + torch.cat([parameter.flatten() for parameter in self.rest.parameters()]).sum()


def main() -> None:
    """Time a step of each schedule on both runtimes, in alternation."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    raise_priority(10)
    dist.init_process_group("gloo")
    microbatches = settings["microbatches"]
    steps: dict[_Key, Step] = {}
    actions: dict[str, int] = {}
    for name in settings["schedules"]:
        schedule = ap.schedule(name, ranks=dist.get_world_size(), microbatches=microbatches)
        own = schedule.ranks[dist.get_rank()]
        actions[name] = sum(len(action.parts) or 1 for action in own)
        for count in settings["parameters"]:
            steps[name, count, "annopipe"] = _ours(schedule, count)
            steps[name, count, "upstream"] = _theirs(name, schedule, count)
    found: dict[_Key, list[Times]] = {key: [] for key in steps}
    for number, key, times in alternated(steps, settings["rounds"], warm_up=_WARMUP):
        if number >= 0:
            found[key].append(times)
    if dist.get_rank() == 0:
        rows = [_row(name, n, actions[name], found) for name in settings["schedules"] for n in settings["parameters"]]
        print("result:" + json.dumps(rows), flush=True)
    dist.barrier()
    end_rank()


def _ours(schedule: ap.Schedule, parameters: int) -> Step:
    modules = _modules(schedule, parameters)
    stages = [modules.get(stage) for stage in range(schedule.placement.stages)]
    pipe = ap.Pipeline(stages, schedule, loss_fn=nn.functional.mse_loss)
    x, target = _batch(schedule.microbatches)
    return lambda: pipe.step(x, target=target)


def _theirs(name: str, schedule: ap.Schedule, parameters: int) -> Step:
    modules = _modules(schedule, parameters)
    return eager_step(name, schedule, modules, nn.functional.mse_loss, _batch(schedule.microbatches))


def _modules(schedule: ap.Schedule, parameters: int) -> dict[int, nn.Module]:
    return {stage: Tiny(parameters) for stage in schedule.placement.stages_on[dist.get_rank()]}


def _batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(microbatches, _WIDTH), torch.zeros(microbatches, _WIDTH)


def _row(name: str, parameters: int, actions: int, found: dict[_Key, list[Times]]) -> dict[str, Any]:
    """Seconds per action of both runtimes; a combination counts as its parts."""
    row: dict[str, Any] = {"schedule": name, "parameters": parameters, "actions": actions}
    for runtime in ("annopipe", "upstream"):
        seconds, processor = zip(*found[name, parameters, runtime], strict=True)
        times = {"median_s": statistics.median(seconds), "fastest_s": min(seconds), "slowest_s": max(seconds)}
        times["processor_s"] = statistics.median(processor)
        row[runtime] = {key: value / actions for key, value in times.items()}
    return row


if __name__ == "__main__":
    main()
