"""Rank program: whatever is written to standard error while two ranks prepare and run a step is an output."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from benchmarks.launch import end_rank


class Nested(nn.Module):
    """Hands on containers with constants."""

    def __init__(self, stage):
        super().__init__()
        self.inner, self.stage = nn.Linear(4, 4), stage

    def forward(self, x):
        return {"x": (self.inner(x), None), "text": "t"} if self.stage == 0 else self.inner(x["x"][0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stages = [Nested(stage) if stage == rank else None for stage in range(2)]
    with tempfile.TemporaryFile("w+") as errors:
        before, sys.stderr = sys.stderr, errors
        pipe = ap.Pipeline(stages, ap.schedule("1f1b", ranks=2, microbatches=2), loss_fn=nn.functional.mse_loss)
        pipe.step(torch.ones(4, 4), target=torch.zeros(4, 4))
        pipe.eval(torch.ones(4, 4))
        sys.stderr = before
        errors.seek(0)
        print(errors.read() or "quiet")
    end_rank()


if __name__ == "__main__":
    main()
