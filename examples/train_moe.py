"""Train a small mixture-of-experts model: pipeline ranks times expert ranks, two stages a rank in a V.

    torchrun --nproc-per-node 4 examples/train_moe.py --steps 50
    python examples/train_moe.py --steps 50 --whole             # the same model and data in one process, to compare
    torchrun --nproc-per-node 4 examples/train_moe.py --steps 10 --checkpoint out/moe
    torchrun --nproc-per-node 2 examples/train_moe.py --steps 10 --checkpoint out/moe --expert-ranks 1     # goes on
    torchrun --nproc-per-node 4 examples/train_moe.py --steps 10 --checkpoint out/moe --shard              # and on

Every expert rank has its own part of the batch, so it is a data-parallel rank for all parameters but the experts. While
a forward waits for its tokens to travel to other experts and back, the backward of another microbatch computes. With
--shard the expert ranks also share the memory of these parameters, of their gradients and of the optimizer.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage

MICROBATCHES, SEQUENCES, LENGTH = 4, 16, 8
CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=4)


def batch(step: int) -> Tensor:
    """Sequences that count up from random beginnings: [sequences, length + 1]."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(CONFIG.vocabulary, (SEQUENCES, 1), generator=generator)
    return (first + torch.arange(LENGTH + 1)) % CONFIG.vocabulary


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The sum of the cross entropies of one microbatch."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")


def train_whole(steps: int) -> list[float]:
    """All of it in one process."""
    model = DeepSeekV3Stage(CONFIG, embed=True, head=True, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        tokens = batch(step)
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:]) / (SEQUENCES * LENGTH)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


class Trainer:
    """This rank's part of the model, and its optimizer."""

    def __init__(self, pipeline_ranks: int, expert_ranks: int, *, shard: bool = False) -> None:
        mesh = init_device_mesh("cpu", (pipeline_ranks, expert_ranks), mesh_dim_names=("pipeline", "experts"))
        pipeline, self.experts = mesh["pipeline"].get_group(), mesh["experts"].get_group()
        self.expert_mesh = mesh["experts"]
        schedule = ap.schedule("dualpipev", ranks=pipeline_ranks, microbatches=MICROBATCHES)
        count = schedule.placement.stages
        layers = [
            list(range(CONFIG.layers))[stage * CONFIG.layers // count :][: CONFIG.layers // count]
            for stage in range(count)
        ]
        stages: list[nn.Module | None] = [
            DeepSeekV3Stage(
                CONFIG, layers[stage], self.experts, embed=stage == 0, head=stage == count - 1, dtype=torch.float64
            )
            if rank == dist.get_rank(pipeline)
            else None
            for stage, rank in enumerate(schedule.placement.rank_of)
        ]
        for stage in stages:
            if shard and stage is not None:
                # Each rank's loss is already its part of the mean over the batch: gradients are added up.
                parts = [name for name, _ in stage.named_modules() if name.endswith(".experts")]
                ap.shard(stage, self.expert_mesh, divide_by=1, ignore=parts)
        self.pipe = ap.Pipeline(stages, schedule, pipeline, loss_fn=loss_of, plan_group=self.experts)
        self.optimizer = torch.optim.AdamW(self.pipe.parameters(), lr=1e-2)

    def step(self, number: int) -> float:
        """Train on one batch; its loss, on every rank."""
        tokens = batch(number).chunk(dist.get_world_size(self.experts))[dist.get_rank(self.experts)]
        found = self.pipe.step(tokens[:, :-1], target=tokens[:, 1:], loss_scale=1 / (SEQUENCES * LENGTH))
        for name, parameter in self.pipe.named_parameters():
            # An expert's gradient has come from all expert ranks already, and so has that of a shared parameter.
            if ".experts." not in name and not isinstance(parameter, DTensor):
                dist.all_reduce(parameter.grad, group=self.experts)
        self.optimizer.step()
        self.optimizer.zero_grad()
        total = torch.stack(found).sum() if found is not None else torch.zeros((), dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / (SEQUENCES * LENGTH)

    def save(self, folder: Path, step: int) -> None:
        """Write model, optimizer and the number of steps made, into a folder of its own."""
        dcp.save({**self._state(), "step": step}, checkpoint_id=folder / f"step{step}")

    def load(self, folder: Path) -> int:
        """Go on from a checkpoint of any number of ranks; the number of steps made."""
        state: dict[str, Any] = {**self._state(), "step": 0}
        dcp.load(state, checkpoint_id=folder)
        ap.load_state_dict(self.pipe, state, self.optimizer)
        return int(state["step"])

    def _state(self) -> dict[str, Any]:
        return ap.state_dict(self.pipe, self.optimizer, sharded={"*.experts.*": self.expert_mesh})


def newest(checkpoint: Path) -> Path | None:
    """The folder of the most steps that is whole."""
    found = [path.parent for path in checkpoint.glob("step*/.metadata")]
    return max(found, key=lambda folder: int(folder.name.removeprefix("step")), default=None)


def train_pipeline(steps: int, expert_ranks: int, checkpoint: Path | None, *, shard: bool) -> tuple[int, list[float]]:
    """Train on all ranks; the number of the first step, and the losses of the batches, on every rank."""
    trainer = Trainer(dist.get_world_size() // expert_ranks, expert_ranks, shard=shard)
    begun = newest(checkpoint) if checkpoint is not None else None
    first = trainer.load(begun) if begun is not None else 0
    losses = [trainer.step(number) for number in range(first, first + steps)]
    if checkpoint is not None:
        trainer.save(checkpoint, first + steps)
    return first, losses


def main() -> None:
    """Parse the command line, train, print a loss per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="to train, from the checkpoint on")
    parser.add_argument("--whole", action="store_true", help="one process instead of pipeline and expert ranks")
    parser.add_argument("--expert-ranks", type=int, default=2, help="of all ranks, those that share the experts")
    parser.add_argument("--shard", action="store_true", help="share all parameters but experts over the expert ranks")
    parser.add_argument(
        "--checkpoint", type=Path, help="go on from this folder, if it is there, and write it at the end"
    )
    parser.add_argument("--json", type=Path, help="also write the losses there")
    options = parser.parse_args()
    if options.whole:
        first, losses, is_first = 0, train_whole(options.steps), True
    else:
        if "WORLD_SIZE" not in os.environ:
            parser.error("start it with torchrun, or with --whole")
        if int(os.environ["WORLD_SIZE"]) % options.expert_ranks:
            parser.error(f"{os.environ['WORLD_SIZE']} ranks are no multiple of {options.expert_ranks} expert ranks")
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        first, losses = train_pipeline(options.steps, options.expert_ranks, options.checkpoint, shard=options.shard)
        is_first = dist.get_rank() == 0
    if is_first:
        for step, loss in enumerate(losses, first):
            print(f"step {step:3d}  loss {loss:.6f}")
        if options.json:
            options.json.write_text(json.dumps(losses))
    if not options.whole:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
