"""Rank program: gradients of a pipeline beside those of the unsplit model, for many schedules in one process.

argument: JSON list of [model, schedule, microbatches], models as in MODELS; "moe" shares its experts over two ranks
output: JSON list of the largest difference of a gradient in each case
"""

import dataclasses
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from benchmarks.launch import end_rank

MODELS = ("dense", "frozen", "tied", "moe")
WIDTH = 6


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


def build(model, index, stages, experts=None):
    """One stage; the same values each time."""
    if model == "moe":
        config = dataclasses.replace(DeepSeekV3Config.tiny(), layers=stages)
        return DeepSeekV3Stage(config, [index], experts, dtype=torch.float64)
    block = Block(WIDTH, index)
    if model == "frozen" and index == 0:
        frozen = block if stages > 1 else block.first  # something has to be trained
        frozen.requires_grad_(requires_grad=False)
    if model == "tied" and index == stages - 1:
        block.first = Block(WIDTH, 0).first
    return block


def batch(model, microbatches):
    torch.manual_seed(7)
    shape = (2 * microbatches, 3, 32) if model == "moe" else (2 * microbatches, WIDTH)
    return torch.randn(shape), torch.randn(shape)


def whole_gradients(model, stages, microbatches):
    """Gradients by stage and name of the unsplit model."""
    parts = [build(model, index, stages) for index in range(stages)]
    if model == "tied" and stages > 1:
        parts[-1].first = parts[0].first
    whole = nn.Sequential(*parts)
    x, y = batch(model, microbatches)
    for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
        loss_of(whole(part), target).backward()
    return [{name: p.grad for name, p in part.named_parameters()} for part in parts]


def difference(model, name, microbatches, ranks, group, experts):
    schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches)
    placement, rank = schedule.placement, dist.get_rank(group) if dist.is_initialized() else 0
    stages = placement.stages // placement.copies
    held = {placement.weights_of[stage] for stage in placement.stages_on[rank]}
    mine = [build(model, i, stages, experts) if i in held else None for i in range(stages)]
    tied = {}
    if model == "tied" and stages > 1:
        tied = {f"{stages - 1}.first.{part}": f"0.first.{part}" for part in ("weight", "bias")}
        if mine[0] is not None and mine[-1] is not None:
            mine[-1].first = mine[0].first
    pipe = ap.Pipeline(mine, schedule, group, loss_of, plan_group=experts, tied=tied)
    x, y = batch(model, microbatches)
    losses = pipe.step(x, target=y)
    assert (losses is not None) == pipe.holds_last
    expected = whole_gradients(model, stages, microbatches)
    worst = 0.0
    for index, stage in enumerate(mine):
        for key, parameter in stage.named_parameters() if stage else ():
            worst = max(worst, apart(parameter.grad, own_part(expected[index][key], key, parameter, experts)))
    return worst


def own_part(gradient, name, parameter, experts):
    """Both expert ranks have the same batch: an expert's gradient comes twice, on the rank that has the expert."""
    if experts is None or ".experts." not in name or gradient is None:
        return gradient
    size, at = parameter.shape[0], dist.get_rank(experts)
    return 2 * gradient[at * size : (at + 1) * size]


def apart(found, expected):
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    return float((found - expected).abs().max())


def main():
    cases = json.loads(sys.argv[1])
    size = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    ranks, group, experts = size, None, None
    if size > 1:
        dist.init_process_group("gloo")
    if cases[0][0] == "moe":
        ranks = size // 2
        mesh = init_device_mesh("cpu", (ranks, 2), mesh_dim_names=("pipeline", "experts"))
        group, experts = mesh["pipeline"].get_group(), mesh["experts"].get_group()
    differences = [difference(model, name, m, ranks, group, experts) for model, name, m in cases]
    print(json.dumps(differences))
    end_rank()


if __name__ == "__main__":
    main()
