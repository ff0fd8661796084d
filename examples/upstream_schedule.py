"""A script for torch.distributed.pipelining that trains a small mixture of experts, and the one line that attaches it.

    torchrun --nproc-per-node 4 examples/upstream_schedule.py --schedule DualPipeV             # eager stages
    torchrun --nproc-per-node 4 examples/upstream_schedule.py --schedule DualPipeV --attach    # graphs, overlapped

Two pipeline ranks with two stages each; on four processes two ranks share the experts of each stage. Losses are the
same. Times on few shared cores say little: `annopipe bench moe --config quick --attach` measures on a paced network.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage

PIPELINE_RANKS, MICROBATCHES, SEQUENCES, LENGTH = 2, 4, 2, 8
CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=4)
SCHEDULES = {
    "Interleaved1F1B": pipelining.ScheduleInterleaved1F1B,
    "ZBVZeroBubble": pipelining.ScheduleZBVZeroBubble,
    "DualPipeV": pipelining.ScheduleDualPipeV,
}


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean cross entropy of one microbatch."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def batch(step: int, share: int) -> Tensor:
    """Sequences that count up from random beginnings, other ones for each expert rank."""
    generator = torch.Generator().manual_seed(1000 * share + step)
    first = torch.randint(CONFIG.vocabulary, (MICROBATCHES * SEQUENCES, 1), generator=generator)
    return (first + torch.arange(LENGTH + 1)) % CONFIG.vocabulary


def train(name: str, steps: int, *, attach: bool) -> tuple[list[float], float]:
    """The losses of all steps, averaged, and the seconds of one step but the first."""
    width = dist.get_world_size() // PIPELINE_RANKS
    mesh = init_device_mesh("cpu", (PIPELINE_RANKS, width), mesh_dim_names=("pipeline", "experts"))
    pipeline, experts = mesh["pipeline"].get_group(), mesh["experts"].get_group()
    rank, count = dist.get_rank(pipeline), 2 * PIPELINE_RANKS
    held = (rank, rank + PIPELINE_RANKS) if name == "Interleaved1F1B" else (rank, count - 1 - rank)
    modules = {
        index: DeepSeekV3Stage(CONFIG, [index], experts, embed=index == 0, head=index == count - 1, dtype=torch.float64)
        for index in held
    }
    device = torch.device("cpu")
    stages = [pipelining.PipelineStage(module, i, count, device, group=pipeline) for i, module in modules.items()]
    schedule = SCHEDULES[name](stages, MICROBATCHES, loss_fn=loss_of)
    if attach:
        ap.attach(schedule, plan_group=experts)  # the one line

    named = [pair for module in modules.values() for pair in module.named_parameters()]
    optimizer = torch.optim.AdamW([parameter for _, parameter in named], lr=1e-2)
    found, started = [], 0.0
    for step in range(steps):
        if step == 1:
            started = time.perf_counter()
        tokens = batch(step, dist.get_rank(experts))
        losses: list[Tensor] = []
        inputs = (tokens[:, :-1],) if 0 in modules else ()
        target = tokens[:, 1:] if count - 1 in modules else None
        schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
        for parameter_name, parameter in named:
            if parameter.grad is not None:
                if ".experts." not in parameter_name:  # an expert's gradient has come from all expert ranks already
                    dist.all_reduce(parameter.grad, group=experts)
                parameter.grad /= width
        optimizer.step()
        optimizer.zero_grad()
        total = sum((loss.detach() for loss in losses), torch.zeros((), dtype=torch.float64))
        dist.all_reduce(total)
        found.append(total.item() / (MICROBATCHES * width))
    return found, (time.perf_counter() - started) / max(1, steps - 1)


def main() -> None:
    """Parse the command line, train, print a loss per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", choices=SCHEDULES, default="DualPipeV", help="of torch.distributed.pipelining")
    parser.add_argument("--attach", action="store_true", help="run it with annopipe")
    parser.add_argument("--steps", type=int, default=20, help="to train")
    parser.add_argument("--json", type=Path, help="also write the losses there")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks % PIPELINE_RANKS:
        parser.error(f"start it with torchrun on {PIPELINE_RANKS} ranks or a multiple, not on {ranks}")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    losses, step_s = train(options.schedule, options.steps, attach=options.attach)
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses):
            print(f"step {step:3d}  loss {loss:.6f}")
        how = "attached" if options.attach else "eager"
        print(f"{options.schedule}, {how}: {step_s * 1e3:.1f} ms a step, measured here")
        if options.json:
            options.json.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
