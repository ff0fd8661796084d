"""Tune: from a table of costs to a schedule, to a config, to a pipeline that trains under it.

    torchrun --nproc-per-node 2 -m examples.tune_and_train
    python -m examples.tune_and_train                     # one process: both stages, or more, on one rank

The table, tune_work.toml, has what each layer takes; a profile, or `ap.costs.roofline`, would say. The search needs
neither the model nor torch. What it finds goes into a file, and every rank makes its pipeline of the file.
"""

import argparse
import dataclasses
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap

WORK = Path(__file__).with_name("tune_work.toml")
WIDTH, SEQUENCES = 16, 16


def search(ranks: int, path: Path) -> None:
    """Search, say what was found, and save the best."""
    work = dataclasses.replace(ap.Workload.from_toml(WORK), ranks=ranks, memory=24.0 * 2 / ranks)
    found = ap.tune(work, copies=1, effort=20_000, workers=1)
    best, library = found[0], found[-1]
    print(f"best      {best.name}: {best.timeline.makespan:.1f}, {best.gap:.3f} of the bound")
    print(f"library   {library.name}: {library.timeline.makespan:.1f}")
    best.save(path)


def model() -> list[nn.Module]:
    """As many layers as the table has; the same on every rank."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(7)]
    return [*layers, nn.Linear(WIDTH, WIDTH)]


def train(path: Path, steps: int) -> list[float]:
    """Train under the config; the loss of each step on the rank that holds the last stage."""
    config, layers = ap.RunConfig.load(path), model()
    held = config.schedule.placement.stages_on[dist.get_rank()]
    stages = [nn.Sequential(*layers[a:b]) if s in held else None for s, (a, b) in enumerate(config.layers)]
    pipe = ap.Pipeline.from_config(path, stages, group=dist.group.WORLD, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    x = torch.randn(SEQUENCES, WIDTH, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(steps):
        found = pipe.step(x, target=x.flip(1), loss_scale=1 / config.schedule.microbatches)
        optimizer.step()
        optimizer.zero_grad()
        if found is not None:
            losses.append(torch.stack(found).mean().item())
    return losses


def main() -> None:
    """The first rank searches, all train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("out/run.toml"), help="where the config goes")
    parser.add_argument("--steps", type=int, default=10, help="to train")
    options = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    if dist.get_rank() == 0:
        search(dist.get_world_size(), options.config)
    dist.barrier()  # the file is there; ranks on other machines need a shared folder
    losses = train(options.config, options.steps)
    if losses:
        print(f"loss      {losses[0]:.4f} at first, {losses[-1]:.4f} after {options.steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
