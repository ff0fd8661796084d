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
from tests.pipeline.gradients import Block, loss_of

TIMEOUT = timedelta(seconds=6)


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
    def forward(self, x):
        with ap.region("moe"), ap.region("dispatch"):
            x = touch(x)
        return super().forward(x)


def main():
    kind, where, name, ending, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule = ap.schedule(name, ranks=ranks, microbatches=4)
    placement = schedule.placement
    mine = [Touched(6, i) if placement.rank_of[i] == rank else None for i in range(placement.stages)]
    pipe = ap.Pipeline(mine, schedule, loss_fn=loss_of, timeout=TIMEOUT)
    x, y = torch.ones(8, 6), torch.zeros(8, 6)
    pipe.step(x, target=y)
    if rank == int(where):
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
    Path(folder, f"{rank}.json").write_text(json.dumps({"said": said, "took_s": took_s, "again": again}))
    if ending == "end":
        os._exit(3)
    sys.exit(3)


if __name__ == "__main__":
    main()
