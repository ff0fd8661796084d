"""One rank of the runtime job: ``python -m benchmarks.runtime.worker SETTINGS_JSON`` under the job's launcher.

Rank 0 prints its result as one line of JSON that starts with "result:".
"""

import contextlib
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as upstream

import annopipe as ap
from benchmarks.launch import end_rank

__all__ = ["UPSTREAM", "main"]

UPSTREAM = {
    "interleaved-1f1b": upstream.ScheduleInterleaved1F1B,
    "zbv": upstream.ScheduleZBVZeroBubble,
    "dualpipev": upstream.ScheduleDualPipeV,
}
_WIDTH = 4
_WARMUP = 3
Step = Callable[[], Any]
Times = tuple[float, float]  # of the clock, of the processor


class Tiny(nn.Module):
    """A stage that computes next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One product of tiny matrices."""
        result: torch.Tensor = self.linear(x)
        return result


def main() -> None:
    """Time a step of each schedule on both runtimes, in alternation."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    with contextlib.suppress(PermissionError):  # as root, other programs on the machine disturb the measurement less
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    dist.init_process_group("gloo")
    microbatches = settings["microbatches"]
    steps: dict[tuple[str, str], Step] = {}
    actions: dict[str, int] = {}
    for name in settings["schedules"]:
        schedule = ap.schedule(name, ranks=dist.get_world_size(), microbatches=microbatches)
        own = schedule.ranks[dist.get_rank()]
        actions[name] = sum(len(action.parts) or 1 for action in own)
        steps[name, "annopipe"] = _ours(schedule)
        steps[name, "upstream"] = _theirs(name, schedule)
    found = _alternated(steps, settings["rounds"])
    if dist.get_rank() == 0:
        rows = [_row(name, actions[name], found) for name in settings["schedules"]]
        print("result:" + json.dumps(rows), flush=True)
    dist.barrier()
    end_rank()


def _ours(schedule: ap.Schedule) -> Step:
    placement = schedule.placement
    stages = [Tiny() if rank == dist.get_rank() else None for rank in placement.rank_of]
    pipe = ap.Pipeline(stages, schedule, loss_fn=nn.functional.mse_loss)
    x, target = _batch(schedule.microbatches)
    return lambda: pipe.step(x, target=target)


def _theirs(name: str, schedule: ap.Schedule) -> Step:
    placement, rank = schedule.placement, dist.get_rank()
    held = placement.stages_on[rank]
    stages: list[Any] = [
        pipelining.PipelineStage(Tiny(), stage, placement.stages, torch.device("cpu")) for stage in held
    ]
    runtime = UPSTREAM[name](stages, schedule.microbatches, loss_fn=nn.functional.mse_loss)
    x, target = _batch(schedule.microbatches)
    inputs = (x,) if 0 in held else ()
    targets = target if placement.stages - 1 in held else None
    return lambda: runtime.step(*inputs, target=targets, return_outputs=False)


def _batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(microbatches, _WIDTH), torch.zeros(microbatches, _WIDTH)


def _alternated(steps: dict[tuple[str, str], Step], rounds: int) -> dict[tuple[str, str], list[Times]]:
    """Times of every step in every round."""
    found: dict[tuple[str, str], list[Times]] = {key: [] for key in steps}
    for step in steps.values():
        for _ in range(_WARMUP):
            step()
    gc.freeze()
    for _ in range(rounds):
        for key, step in steps.items():
            found[key].append(_times(step))
    gc.unfreeze()
    return found


def _times(step: Step) -> Times:
    """Seconds of the slowest rank, and of the processor (all threads of the process that used most)."""
    dist.barrier()
    used, started = time.process_time(), time.perf_counter()
    step()
    seconds = torch.tensor([time.perf_counter() - started, time.process_time() - used], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds[0].item(), seconds[1].item()


def _row(name: str, actions: int, found: dict[tuple[str, str], list[Times]]) -> dict[str, Any]:
    """Seconds per action of both runtimes; a combination counts as its parts."""
    row: dict[str, Any] = {"schedule": name, "actions": actions}
    for runtime in ("annopipe", "upstream"):
        seconds, processor = zip(*found[name, runtime], strict=True)
        times = {"median_s": statistics.median(seconds), "fastest_s": min(seconds), "slowest_s": max(seconds)}
        times["processor_s"] = statistics.median(processor)
        row[runtime] = {key: value / actions for key, value in times.items()}
    return row


if __name__ == "__main__":
    main()
