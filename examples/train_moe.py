"""Train a small mixture-of-experts model: two pipeline ranks times two expert ranks, four stages in a V.

    torchrun --nproc-per-node 4 examples/train_moe.py --steps 50
    python examples/train_moe.py --steps 50 --whole             # the same model and data in one process, to compare

Every expert rank has its own part of the batch, so it is a data-parallel rank for all parameters but the experts. While
a forward waits for its tokens to travel to other experts and back, the backward of another microbatch computes.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage

PIPELINE_RANKS, EXPERT_RANKS, MICROBATCHES, SEQUENCES, LENGTH = 2, 2, 4, 2, 8
CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=4)


def batch(step: int) -> Tensor:
    """Sequences that count up from random beginnings: [expert ranks, microbatches * sequences, length + 1]."""
    generator = torch.Generator().manual_seed(step)
    shape = (EXPERT_RANKS, MICROBATCHES * SEQUENCES, 1)
    first = torch.randint(CONFIG.vocabulary, shape, generator=generator)
    return (first + torch.arange(LENGTH + 1)) % CONFIG.vocabulary


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean cross entropy of one microbatch."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train_whole(steps: int) -> list[float]:
    """All of it in one process."""
    model = DeepSeekV3Stage(CONFIG, embed=True, head=True, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        parts = [part for share in batch(step) for part in share.chunk(MICROBATCHES)]
        total = 0.0
        for part in parts:
            loss = loss_of(model(part[:, :-1]), part[:, 1:]) / len(parts)
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def train_pipeline(steps: int) -> list[float]:
    """This rank's part of it; the losses of all microbatches, averaged, on every rank."""
    mesh = init_device_mesh("cpu", (PIPELINE_RANKS, EXPERT_RANKS), mesh_dim_names=("pipeline", "experts"))
    pipeline, experts = mesh["pipeline"].get_group(), mesh["experts"].get_group()
    schedule = ap.schedule("dualpipev", ranks=PIPELINE_RANKS, microbatches=MICROBATCHES)
    last = schedule.placement.stages - 1
    stages: list[nn.Module | None] = [
        DeepSeekV3Stage(CONFIG, [index], experts, embed=index == 0, head=index == last, dtype=torch.float64)
        if rank == dist.get_rank(pipeline)
        else None
        for index, rank in enumerate(schedule.placement.rank_of)
    ]
    pipe = ap.Pipeline(stages, schedule, pipeline, loss_fn=loss_of, plan_group=experts)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        tokens = batch(step)[dist.get_rank(experts)]
        found = pipe.step(tokens[:, :-1], target=tokens[:, 1:], loss_scale=1 / (MICROBATCHES * EXPERT_RANKS))
        for name, parameter in pipe.named_parameters():
            if ".experts." not in name:  # an expert's gradient has come from all expert ranks already
                dist.all_reduce(parameter.grad, group=experts)
        optimizer.step()
        optimizer.zero_grad()
        total = torch.stack(found).sum() if found is not None else torch.zeros((), dtype=torch.float64)
        dist.all_reduce(total)
        losses.append(total.item() / (MICROBATCHES * EXPERT_RANKS))
    return losses


def main() -> None:
    """Parse the command line, train, print a loss per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--whole", action="store_true", help="one process instead of pipeline and expert ranks")
    parser.add_argument("--json", type=Path, help="also write the losses there")
    options = parser.parse_args()
    if options.whole:
        losses, is_first = train_whole(options.steps), True
    else:
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        losses, is_first = train_pipeline(options.steps), dist.get_rank() == 0
    if is_first:
        for step, loss in enumerate(losses):
            print(f"step {step:3d}  loss {loss:.6f}")
        if options.json:
            options.json.write_text(json.dumps(losses))
    if not options.whole:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
