"""Rank program: pipelines of compiled stages whose experts are on two ranks, beside the same in eager graphs."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble
from torch.utils._python_dispatch import TorchDispatchMode

import annopipe as ap
from annopipe.compiling import inductor
from tests.compiling.small_moe import SmallMoE
from tests.pipeline.nano_batching import nano_batched
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


def nano_batched_lanes_run_compiled_and_new_counts_compile_nothing_again():
    schedule = nano_batched(ap.schedule("dualpipev", ranks=1, microbatches=MICROBATCHES))
    compiled = None
    for bias in (0.0, 100.0, -0.5):
        _, expected, planned = trained(schedule, bias, policy="alternate")
        pipe, found, seen = trained(schedule, bias, policy="alternate", compile="inductor")
        near(found, expected)
        assert seen == planned
        assert any(len(parts[0]) == 3 for parts in pipe.plans()), "no plan of nano-batches"
        assert len(pipe.compile_report.compiled) > 8
        compiled = compiled or inductor.compile_form.cache_info().misses
        assert inductor.compile_form.cache_info().misses == compiled


def what_a_backward_computes_again_and_evaluation_run_compiled():
    schedule = ap.schedule("zbv", ranks=1, microbatches=MICROBATCHES)
    x = torch.rand(MICROBATCHES * ROWS, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    outputs = []
    for compiles in (None, "inductor"):
        pipe, found, seen = trained(schedule, recompute=["norm", "experts"], compile=compiles)
        outputs.append((found | dict(enumerate(pipe.eval(x))), seen))
    near(outputs[1][0], outputs[0][0])
    assert outputs[0][1] == outputs[1][1]
    assert any(row.phase == "recompute" for row in pipe.compile_report.compiled)


def an_attached_schedule_runs_compiled():
    rank = dist.get_rank()
    x = torch.rand(MICROBATCHES * ROWS, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = []
    for compiles in (None, "inductor"):
        modules = [Gated(), Gated()]
        places = (rank, 3 - rank)  # a V
        made = [PipelineStage(m, place, 4, torch.device("cpu")) for m, place in zip(modules, places, strict=True)]
        schedule = ap.attach(ScheduleZBVZeroBubble(made, MICROBATCHES, loss_fn=F.mse_loss), compile=compiles)
        losses: list = []
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x, "losses": losses} if rank == 0 else {}))
        gradients = {f"{n} {name}": p.grad for n, m in enumerate(modules) for name, p in m.named_parameters()}
        found.append(gradients | dict(enumerate(losses)))
    near(found[1], found[0])
    assert schedule.annopipe.compile_report.compiled


class Gated(torch.nn.Module):
    """Something to fuse."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, WIDTH, dtype=torch.float64))

    def forward(self, x):
        return x + torch.tanh(x * self.weight).sigmoid() * x


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
    nano_batched_lanes_run_compiled_and_new_counts_compile_nothing_again,
    what_a_backward_computes_again_and_evaluation_run_compiled,
    an_attached_schedule_runs_compiled,
    ranks_have_to_compile_alike,
)


if __name__ == "__main__":
    run_cases(CASES)
