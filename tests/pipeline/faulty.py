"""Rank program: one rank fails in the middle of a step; every rank writes what its step raised, and how it ended.

The second step fails: a rank is killed, stopped (by its own signal, as if from outside) or raises, in an operation of
stage 1's forward that is called for microbatch 1.
"""

import contextlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.models.exchange import exchange
from tests.pipeline.gradients import Block, loss_of

TIMEOUT = timedelta(seconds=12)


class Trouble:
    """What the operation below does: nothing until it is armed."""

    kind = ""
    calls = 0


@torch.library.custom_op("faulty::touch", mutates_args=())
def touch(x: torch.Tensor) -> torch.Tensor:
    Trouble.calls += bool(Trouble.kind)
    if Trouble.calls == 2:
        happen(Trouble.kind)
    return x.clone()


@touch.register_fake
def _(x):
    return torch.empty_like(x)


touch.register_autograd(lambda ctx, grad: grad)


def happen(kind):
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "raise":
        raise ValueError("no experts today")
    if kind == "memory":
        raise torch.OutOfMemoryError("out of memory: tried to allocate 5 EiB")
    if kind == "interrupt":
        raise KeyboardInterrupt


class Touched(Block):
    """A block that does something before, and then exchanges rows with its expert-parallel peers, if it has any."""

    def __init__(self, index, group):
        super().__init__(6, index)
        self.group = group
        self.register_buffer("counts", torch.ones(2, dtype=torch.long))

    def forward(self, x):
        with ap.region("moe"), ap.comm("dispatch"):
            x = touch(x)
            if self.group is not None:
                x = exchange(x, self.counts, self.counts, 2, self.group)
        return super().forward(x)


def groups_of(rank, layout):
    """The pipeline's group and the expert-parallel one: (0, 2), (1, 3) and (0, 1), (2, 3) of four ranks.

    Or, "alone", pipelines of one rank that share their experts.
    """
    if layout == "alone":
        return [dist.new_group([other]) for other in range(dist.get_world_size())][rank], dist.group.WORLD
    if layout != "experts":
        return None, None
    pipelines = [dist.new_group([start, start + 2]) for start in (0, 1)]
    experts = [dist.new_group([start, start + 1]) for start in (0, 2)]
    return pipelines[rank % 2], experts[rank // 2]


def main():
    kind, where, name, ending, layout, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    world = dist.get_rank()
    group, experts = groups_of(world, layout)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    schedule = ap.schedule(name, ranks=ranks, microbatches=4)
    placement = schedule.placement
    mine = [Touched(i, experts) if placement.rank_of[i] == rank else None for i in range(placement.stages)]
    planned = experts if layout == "experts" else None
    pipe = ap.Pipeline(mine, schedule, group, loss_fn=loss_of, plan_group=planned, timeout=TIMEOUT)
    x, y = torch.ones(8, 6), torch.zeros(8, 6)
    dist.barrier()
    if layout != "alone":  # there it is the first one that fails
        pipe.step(x, target=y)
    if world == int(where):
        Trouble.kind = kind
    start, said = time.monotonic(), "nothing"
    try:
        pipe.step(x, target=y)
    except (ap.PipelineError, KeyboardInterrupt) as error:
        said = f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - start
    again = ""
    try:
        pipe.step(x, target=y)
    except ap.PipelineError as error:
        again = str(error)
    if ending == "destroy":
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    Path(folder, f"{world}.json").write_text(json.dumps({"said": said, "took_s": took_s, "again": again}))
    if ending == "end":
        os._exit(3)
    sys.exit(3)


if __name__ == "__main__":
    main()
