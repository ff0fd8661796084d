"""Rank program: gradients of a pipeline beside those of the unsplit model, for many schedules in one process."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from benchmarks.launch import end_rank


class Block(nn.Module):
    def __init__(self, width, index):
        super().__init__()
        torch.manual_seed(index)
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        with ap.region("mlp"):
            return x + self.second(torch.tanh(self.first(x)))


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def main():
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    found = []
    for name, microbatches in json.loads(sys.argv[1]):
        schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches)
        placement = schedule.placement
        whole = nn.Sequential(*[Block(6, index) for index in range(placement.stages)])
        torch.manual_seed(7)
        x, y = torch.randn(2 * microbatches, 6), torch.randn(2 * microbatches, 6)
        for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            loss_of(whole(part), target).backward()
        mine = [Block(6, i) if placement.rank_of[i] == rank else None for i in range(placement.stages)]
        pipe = ap.Pipeline(mine, schedule, loss_fn=loss_of)
        losses = pipe.step(x, target=y)
        worst = 0.0
        for stage, reference in zip(mine, whole, strict=True):
            for own, other in zip(stage.parameters(), reference.parameters(), strict=True) if stage else ():
                worst = max(worst, float((own.grad - other.grad).abs().max()))
        assert (losses is not None) == pipe.holds_last
        found.append((name, microbatches, worst))
    print(json.dumps(found))
    end_rank()


if __name__ == "__main__":
    main()
