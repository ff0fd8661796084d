"""Rank program: pipelines of compiled stages whose experts are on two ranks, beside the same in eager graphs."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import annopipe as ap
from tests.compiling.small_moe import SmallMoE
from tests.pipeline.trial import refused, run_cases

WIDTH, MICROBATCHES, ROWS = 8, 4, 6
GROUPS: list[dist.ProcessGroup] = []


def alone():
    """This rank's own pipeline."""
    if not GROUPS:
        GROUPS.extend(dist.new_group([rank]) for rank in range(2))
    return GROUPS[dist.get_rank()]


class Communication(TorchDispatchMode):
    """The launches and waits that really run, in their order."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if getattr(func, "namespace", "") in ("annopipe", "_c10d_functional"):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def stages(bias=0.0):
    found = [SmallMoE(WIDTH, dist.group.WORLD, 2, dist.get_rank(), torch.float64) for _ in range(2)]
    for stage in found:
        with torch.no_grad():
            stage.router[:, 0] += bias
    return found


def trained(schedule, bias=0.0, **options):
    """A pipeline after one step, its losses and gradients, and what it communicated."""
    modules = stages(bias)
    pipe = ap.Pipeline(modules, schedule, alone(), F.mse_loss, plan_group=dist.group.WORLD, **options)
    generator = torch.Generator().manual_seed(dist.get_rank())
    x, target = torch.rand(2, MICROBATCHES * ROWS, WIDTH, generator=generator, dtype=torch.float64)
    pipe.prepare(x, target=target)
    with Communication() as communication:
        losses = pipe.step(x, target=target)
    gradients = {name: parameter.grad for name, parameter in pipe.named_parameters()}
    return pipe, {**{f"loss {n}": loss for n, loss in enumerate(losses)}, **gradients}, communication.seen


def near(found, expected):
    for name, value in expected.items():
        assert (found[name] - value).abs().max() <= 1e-12 * max(1.0, value.abs().max()), name


def every_order_of_compiled_graphs_has_the_same_bits_and_the_plans_communication():
    schedule = ap.schedule("dualpipev", ranks=1, microbatches=MICROBATCHES)
    _, expected, _ = trained(schedule, policy="sequential")
    results = []
    for policy in ("sequential", "alternate", "F.norm | B.combine ; B.experts | F.dispatch"):
        pipe, found, seen = trained(schedule, policy=policy, compile="inductor")
        near(found, expected)
        results.append(found)
        assert len(pipe.compile_report.compiled) > pipe.compile_report.distinct > 8
        assert seen == trained(schedule, policy=policy)[2]
    for other in results[1:]:
        assert all(torch.equal(other[name], value) for name, value in results[0].items())


def compiled_graphs_run_without_a_token_and_in_split_backwards():
    schedule = ap.schedule("zbv", ranks=1, microbatches=MICROBATCHES)
    for bias in (0.0, 100.0, -100.0):
        _, expected, _ = trained(schedule, bias)
        _, found, _ = trained(schedule, bias, compile="inductor")
        near(found, expected)


def ranks_have_to_compile_alike():
    schedule = ap.schedule("1f1b", ranks=2, microbatches=MICROBATCHES)
    rank = dist.get_rank()
    mine = [torch.nn.Linear(4, 4) if stage == rank else None for stage in range(2)]
    pipe = ap.Pipeline(mine, schedule, loss_fn=F.mse_loss, compile="inductor" if rank else None)
    x = torch.zeros(MICROBATCHES, 4)
    refused(ap.PipelineError, "have different arguments, compile: None and inductor", lambda: pipe.step(x, target=x))


CASES = (
    every_order_of_compiled_graphs_has_the_same_bits_and_the_plans_communication,
    compiled_graphs_run_without_a_token_and_in_split_backwards,
    ranks_have_to_compile_alike,
)


if __name__ == "__main__":
    run_cases(CASES)
