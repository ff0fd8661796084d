"""Rank program: scripts for torch.distributed.pipelining, run as they are and with one line more."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import schedules as upstream
from torch.nn.parallel import DistributedDataParallel

import annopipe as ap
from annopipe.errors import PipelineError
from tests.pipeline.trial import close, run_cases

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
WIDTH, ROWS = 6, 2
# By class: stages a rank, whether the last half is folded back, and whether gradients are added up in the same order.
CLASSES = {
    "ScheduleGPipe": (1, False, True),
    "Schedule1F1B": (1, False, True),
    "ScheduleLoopedBFS": (2, False, True),
    "ScheduleInterleaved1F1B": (2, False, True),
    "ScheduleInterleavedZeroBubble": (2, False, False),
    "ScheduleZBVZeroBubble": (2, True, False),
    "ScheduleDualPipeV": (2, True, False),
}


class Block(nn.Module):
    """Two tensors in, two out, a keyword that not all stages are given, dropout, and a buffer."""

    def __init__(self, stage, count):
        super().__init__()
        torch.manual_seed(100 + stage)
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.is_last = stage == count - 1

    def forward(self, x, mask, scale=None):
        with ap.region("mlp"):
            y = x + self.second(torch.tanh(self.first(x))) * mask * self.frozen
        y = self.norm(y if scale is None else y * scale)
        return y if self.is_last else (y, mask)


def squares(output, target, weight=1.0):
    return (weight * (output - target) ** 2).mean()


class Script:
    """What a user of torch.distributed.pipelining has; `attach` is the line that may be added."""

    def __init__(self, name, attach, microbatches=4, make=None, build=Block, loss_fn=squares, **options):
        self.chunks, folded, _ = CLASSES.get(name, (2, False, False))
        self.count, self.rank = RANKS * self.chunks, dist.get_rank()
        held = range(self.rank, self.count, RANKS)
        if folded:
            held = [self.rank, self.count - 1 - self.rank]
        self.modules = {index: build(index, self.count) for index in held}
        stages = [
            pipelining.PipelineStage(module, index, self.count, torch.device("cpu"))
            for index, module in self.modules.items()
        ]
        make = make or getattr(upstream, name)
        self.schedule = make(stages[0] if self.chunks == 1 else stages, microbatches, loss_fn=loss_fn, **options)
        if attach:
            assert ap.attach(self.schedule) is self.schedule
        self.microbatches = microbatches

    def call(self, method="step", seed=1, *, target=True, kwargs=None, losses=True, inputs=None, **options):
        """Losses and output of one call, as a script makes it."""
        generator = torch.Generator().manual_seed(seed)
        rows = self.microbatches * ROWS
        x, y = (torch.randn(rows, WIDTH, generator=generator) for _ in range(2))
        mask = torch.rand(rows, 1, generator=generator)
        args = ((x, mask) if inputs is None else inputs(x, mask)) if 0 in self.modules else ()
        wanted = y if target and self.count - 1 in self.modules else None
        found = [] if losses else None
        torch.manual_seed(seed)
        run = getattr(self.schedule, method)
        output = run(*args, target=wanted, losses=found, **options, **({} if kwargs is None else kwargs(generator)))
        return found, output

    def gradients(self):
        return {
            f"{stage}.{name}": p.grad for stage, module in self.modules.items() for name, p in module.named_parameters()
        }

    def state(self):
        return {
            f"{stage}.{name}": value for stage, m in self.modules.items() for name, value in m.state_dict().items()
        }


def same(found, expected, what, exact):
    assert (found is None) == (expected is None), f"{what}: {found} and {expected}"
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), what
        for own, other in zip(found, expected, strict=True):
            same(own, other, what, exact)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for key in expected:
            same(found[key], expected[key], f"{what} {key}", exact)
    elif expected is not None:
        close(found.detach(), expected.detach(), what)
        assert not exact or torch.equal(found, expected), f"{what} is not bitwise equal"


def pair(name, *given, **options):
    return Script(name, False, *given, **options), Script(name, True, *given, **options)


def both(scripts, exact=False, **call):
    plain, attached = scripts
    expected, found = plain.call(**call), attached.call(**call)
    same(found[0], expected[0], "losses", exact)
    same(found[1], expected[1], "output", exact)
    same(attached.gradients(), plain.gradients(), "gradient", exact)
    same(attached.state(), plain.state(), "state", exact)


def refused(match, call):
    with pytest.raises(PipelineError, match=re.escape(match)):
        call()


def every_class_has_the_losses_outputs_and_gradients_of_upstream():
    for name, (_, _, exact) in CLASSES.items():
        for scale_grads in (True, False):
            scripts = pair(name, 3 if name.startswith("Schedule1F") and RANKS < 4 else 4, scale_grads=scale_grads)
            both(scripts, exact)


if __name__ == "__main__":
    if RANKS == 1:
        dist.init_process_group("gloo")
    run_cases([every_class_has_the_losses_outputs_and_gradients_of_upstream])
