"""Rank program: mistakes that two ranks find before anything is sent, one after the other on the same groups."""

import dataclasses
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from benchmarks.launch import end_rank
from tests.pipeline.gradients import Block, loss_of


class Wide(nn.Module):
    """Takes 7 columns where the stage before gives 6."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 6)

    def forward(self, x):
        return self.linear(x)


class Doubled(Block):
    def forward(self, x):
        return super().forward(x).double()


class WithFunction(Block):
    def forward(self, x):
        return super().forward(x), loss_of, lambda: None


def blocks(rank):
    return [Block(6, index) if index == rank else None for index in range(2)]


def make(rank, stages=None, name="1f1b", microbatches=2, **options):
    schedule = ap.schedule(name, ranks=2, microbatches=microbatches)
    return ap.Pipeline(stages or blocks(rank), schedule, **{"loss_fn": loss_of, **options})


X, Y = torch.ones(4, 6), torch.zeros(4, 6)


def cases(rank):
    yield "microbatches", lambda: make(rank, microbatches=2 + 2 * rank).step(X, target=Y)
    yield "schedule", lambda: make(rank, name=("1f1b", "gpipe")[rank], microbatches=4).step(X, target=Y)
    yield "policy", lambda: make(rank, policy=("auto", "list")[rank]).step(X, target=Y)
    yield "lengths", lambda: make(rank).step(X if rank == 0 else None, target=Y[:2])
    yield "buckets", lambda: make(rank, bucket_bytes=(None, 64)[rank]).step(X, target=Y)
    yield "dims", lambda: make(rank, batch_dims=({}, {"x": 0})[rank]).step(X, target=Y)
    yield "call", lambda: getattr(make(rank), ("step", "prepare")[rank])(X, target=Y)
    yield "loss_fn", lambda: make(rank, loss_fn=None).step(X, target=Y)
    yield "inputs", lambda: make(rank).step(X, X, target=Y)
    yield "no inputs", lambda: make(rank).step(target=Y)
    yield "no target", lambda: make(rank).step(X)
    yield "uncut", lambda: make(rank).step(X[:3] if rank == 0 else X, target=Y)
    yield "cut", lambda: make(rank, [None, Wide()] if rank else None).step(X, target=Y)
    yield "no grad", lambda: without_gradients(lambda: make(rank).step(X, target=Y), rank)
    yield "meta", lambda: make(rank, [None, Block(6, 1).to("meta")] if rank else None).step(X, target=Y)
    yield "policy name", lambda: make(rank, pairs(rank), "dualpipev", 4, policy="fastest").step(X, target=Y)
    yield "scale", lambda: make(rank).step(X, target=Y, loss_scale="1" if rank else 1.0)
    yield "tied", lambda: make(rank, tied=({}, {"1.first.bias": "0.first.bias"})[rank]).step(X, target=Y)
    yield "dtype", lambda: make(rank, None if rank else [Doubled(6, 0), None]).step(X, target=Y)
    yield "constant", lambda: make(rank, None if rank else [WithFunction(6, 0), None]).step(X, target=Y)
    pipes = [make(rank), make(rank)]
    yield "first", lambda: pipes[0].step(X, target=Y)
    yield "second", lambda: pipes[1].step(X, target=Y)
    yield "crossed", lambda: pipes[rank].step(X, target=Y)
    yield "clip and step", lambda: ap.clip_grad_norm_(pipes[0], 1.0) if rank else pipes[0].step(X, target=Y)
    yield "clip", lambda: ap.clip_grad_norm_(pipes[0], 1.0 + rank)
    yield "first again", lambda: pipes[0].step(X, target=Y)
    yield "replaced", lambda: replaced(rank)
    yield "fine", lambda: make(rank).step(X, target=Y)


def replaced(rank):
    """One rank says anew what an operation does; the other does not, and everything is prepared as it was."""
    spec = ap.schedule_spec("1f1b", ranks=2, microbatches=2)
    pipe = ap.Pipeline(blocks(rank), dataclasses.replace(spec, operations=(OFFLOAD,)).build(), loss_fn=loss_of)
    calls = []
    pipe.register("OFFLOAD", lambda *_: calls.append("old"))
    pipe.step(X, target=Y)
    if rank:
        pipe.register("OFFLOAD", lambda *_: calls.append("new"))
    pipe.step(X, target=Y)
    if calls != ["old"] * 2 + ["new" if rank else "old"] * 2:
        raise ap.PipelineError(str(calls))


OFFLOAD = ap.Operation("OFFLOAD", after="F")


def pairs(rank):
    return [Block(6, index) if (index in (0, 3)) == (rank == 0) else None for index in range(4)]


def without_gradients(call, rank):
    with torch.no_grad() if rank == 0 else torch.enable_grad():
        return call()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    rank = dist.get_rank()
    found = {}
    for name, call in cases(rank):
        dist.barrier()  # the group is whole, whatever was raised before
        try:
            call()
            found[name] = ""
        except ap.AnnopipeError as error:
            found[name] = f"{type(error).__name__}: {error}"
    calls = {"step": lambda pipe: pipe.step(X, target=Y), "clip_grad_norm_": lambda pipe: ap.clip_grad_norm_(pipe, 1.0)}
    for name, call in calls.items():
        late = make(rank, group=dist.new_group(), timeout=timedelta(seconds=3))
        try:
            if rank == 0:
                call(late)
        except ap.PipelineError as error:
            found[f"{name} alone"] = str(error)
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
    end_rank()


if __name__ == "__main__":
    main()
