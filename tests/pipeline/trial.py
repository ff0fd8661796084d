"""A pipeline beside the unsplit model, for rank programs: the same modules, calls, losses, gradients and buffers."""

import inspect
import json
import os
import re
import sys
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import annopipe as ap
from benchmarks.launch import end_rank

# A chain, a V with split backwards, and a V with combined graphs; tracing takes long where many ranks share few cores.
SCHEDULES = {"1": ("1f1b", "dualpipev"), "2": ("1f1b", "zbv", "dualpipev"), "4": ("1f1b",)}.get(
    os.environ.get("WORLD_SIZE", "1"), ()
)


class Trial:
    """`build(stage, stages)` makes a stage with the same values each time; calls go to both models.

    `tie(stages)` lets stages share parameters, where they are in one process; `change` makes another schedule of that.
    """

    def __init__(self, build, name="1f1b", microbatches=3, loss_fn=None, group=None, tie=None, change=None, **options):
        self.group = group
        self.rank = dist.get_rank(group) if dist.is_initialized() else 0
        ranks = dist.get_world_size(group) if dist.is_initialized() else 1
        self.schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches)
        if change is not None:
            self.schedule = change(self.schedule)
        self.placement = self.schedule.placement
        self.loss_fn = squares if loss_fn is None else loss_fn
        count = self.placement.stages
        self.whole = [seeded(build, stage, count) for stage in range(count)]
        self.mine = {s: seeded(build, s, count) for s in range(count) if self.placement.rank_of[s] == self.rank}
        if tie is not None:
            tie(dict(enumerate(self.whole)))
            tie(self.mine)
        stages = [self.mine.get(stage) for stage in range(count)]
        options = {
            "timeout": timedelta(seconds=60),
            "group": group,
            "loss_fn": self.loss_fn,
            "policy": "alternate",
            **options,
        }
        self.pipe = ap.Pipeline(stages, self.schedule, **options)

    def forward(self, args, kwargs=None):
        """The unsplit model, stage after stage."""
        value = args
        for module in self.whole:
            names = inspect.signature(module.forward).parameters
            value = module(*value, **{key: item for key, item in (kwargs or {}).items() if key in names})
            result, value = value, value if type(value) is tuple else (value,)
        return result

    def eager(self, calls, scale=1.0, auxiliary_scale=None):
        """Losses of the unsplit model for calls (args, kwargs, target); gradients are added up."""
        losses = []
        for args, kwargs, target in calls:
            with ap.auxiliary_losses() as added:
                loss = self.loss_fn(self.forward(args, kwargs), target)
            total = scale * loss + (scale if auxiliary_scale is None else auxiliary_scale) * sum(added)
            if total.requires_grad:
                total.backward()
            losses.append(loss.detach())
        return losses

    def both(self, calls, scale=1.0, auxiliary_scale=None):
        """One step of both models, which have to agree."""
        expected = self.eager(calls, scale, auxiliary_scale)
        args, kwargs, targets = zip(*calls, strict=True)
        losses = self.pipe.step_microbatches(args, kwargs, targets, loss_scale=scale, auxiliary_scale=auxiliary_scale)
        self.check_losses(losses, expected)
        self.check()

    def check_losses(self, losses, expected):
        assert (losses is not None) == self.pipe.holds_last
        if losses is not None:
            assert len(losses) == len(expected)
            assert all(not loss.requires_grad and loss.grad_fn is None for loss in losses)
            for loss, other in zip(losses, expected, strict=True):
                close(loss, other, "loss")

    def check(self, tolerance=1e-12):
        """Gradients, None where they are None, and buffers."""
        for stage, module in self.mine.items():
            whole = dict(self.whole[stage].named_parameters())
            for name, own in module.named_parameters():
                assert (own.grad is None) == (whole[name].grad is None), (
                    f"{stage}.{name}: {own.grad} {whole[name].grad}"
                )
                if own.grad is not None:
                    close(own.grad, whole[name].grad, f"gradient of {stage}.{name}", tolerance)
                    assert own.grad.is_sparse or own.grad.stride() == whole[name].grad.stride()
            for name, own in self.whole[stage].named_buffers():
                close(module.get_buffer(name), own, f"buffer {stage}.{name}", tolerance)

    def parameters(self):
        """Of the unsplit model, once each."""
        return list(dict.fromkeys(p for module in self.whole for p in module.parameters()))

    def zero(self):
        for parameter in [*self.parameters(), *self.pipe.parameters()]:
            parameter.grad = None


def seeded(build, stage, count):
    torch.manual_seed(100 + stage)
    return build(stage, count)


def squares(output, target):
    return ((output - target) ** 2).mean()


def close(own, other, what, tolerance=1e-12):
    assert own.shape == other.shape, f"{what}: {own.shape} {other.shape}"
    assert own.dtype == other.dtype, f"{what}: {own.dtype} {other.dtype}"
    worst = float((own.double() - other.double()).abs().max()) if own.numel() else 0.0
    assert worst <= tolerance * max(1.0, float(other.double().abs().max()) if own.numel() else 1.0), f"{what}: {worst}"


def batches(microbatches, shape=(2, 6), seed=7):
    """Calls with one random tensor each, and a random target of the same shape."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(2, *shape, generator=generator, dtype=torch.float64) for _ in range(microbatches)]
    return [((x,), {}, y) for x, y in made]


def refused(error, match, call):
    with pytest.raises(error, match=re.escape(match)):
        call()


def run_cases(cases):
    """Run the cases that the command line names (all without), and print what went wrong in each; the last act."""
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    found = {}
    for case in cases:
        if len(sys.argv) > 1 and case.__name__ not in sys.argv[1:]:
            continue
        try:
            case()
            found[case.__name__] = ""
        except Exception:  # noqa: BLE001 - whatever it is, the test tells it
            found[case.__name__] = traceback.format_exc()
            if dist.is_initialized():
                break  # the ranks may be out of step now
    print(json.dumps(found))
    end_rank()
