"""One of four processes over gloo; writes what the tests compare to DIRECTORY/RANK.pt. Started by conftest.py.

python -m tests.models.ep_worker DIRECTORY, once per rank (benchmarks.launch)
"""

import dataclasses
import functools
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, MoE, PlainMoE
from annopipe.models.exchange import exchange
from benchmarks.launch import end_rank
from tests.models import cases, joint_graph

RANKS = 4
SPLITS = {  # row: sender, column: receiver
    "even": [[2] * 4] * 4,
    "ragged": [[0, 3, 1, 2], [5, 0, 0, 1], [0, 0, 0, 4], [1, 2, 3, 0]],
    "one rank idle": [[1, 0, 2, 3], [0, 0, 0, 0], [2, 0, 0, 1], [0, 0, 4, 4]],
    "all to one": [[0, 0, 3, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 5, 0]],
    "nothing": [[0] * 4] * 4,
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def exchanges(rank: int, groups: dict[int, dist.ProcessGroup]) -> dict:
    """Our exchange beside the functional collective: value and gradient for every split and dtype."""
    out = {}
    for name, table in SPLITS.items():
        send, recv = table[rank], [row[rank] for row in table]
        for dtype in DTYPES:
            generator = torch.Generator().manual_seed(rank)
            x = torch.randn(sum(send), 3, generator=generator).to(dtype).requires_grad_(True)
            grad = torch.randn(sum(recv), 3, generator=generator).to(dtype)
            ours = exchange(x, torch.tensor(send), torch.tensor(recv), sum(recv), groups[4])
            (our_grad,) = torch.autograd.grad(ours, x, grad)
            theirs = functional.all_to_all_single_autograd(x, recv, send, groups[4])
            (their_grad,) = torch.autograd.grad(theirs, x, grad)
            out[name, dtype] = (ours.detach(), our_grad, theirs.detach() + 0, their_grad + 0)
    return out


def expert_parallel(groups: dict[int, dist.ProcessGroup], build: Callable[[dist.ProcessGroup], nn.Module]) -> dict:
    """Output and gradients of a stage for 1, 2 and 4 ranks that share the experts and the batch of four sequences."""
    batch, grad = torch.randn(2, 4, 5, 32, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    out = {}
    for ranks, group in groups.items():
        stage = build(group)
        mine = slice(group.rank() * 4 // ranks, (group.rank() + 1) * 4 // ranks)
        values = joint_graph.eager(stage, batch[mine], grad[mine])
        names = ["output", *(name for name, _ in stage.named_parameters()), "input"]
        out[ranks] = dict(zip(names, values, strict=True))
    return out


def three_layers(moe: type[MoE], group: dist.ProcessGroup) -> nn.Module:
    config = dataclasses.replace(DeepSeekV3Config.tiny(), dense_layers=1, layers=3)
    return DeepSeekV3Stage(config, group=group, seed=3, dtype=torch.float64, moe=moe)


def one_layer(model: str, kind: str, group: dist.ProcessGroup) -> nn.Module:
    return cases.moe_stage(model, kind, group=group, seed=3, dtype=torch.float64)


def skewed_graphs(rank: int, groups: dict[int, dist.ProcessGroup]) -> dict:
    """One capture, run for routings that give this rank 0, 1 or many rows; graphs beside eager autograd."""
    config = dataclasses.replace(DeepSeekV3Config.tiny(), top_k=1, layers=1, q_lora_rank=None)
    stage = DeepSeekV3Stage(config, group=groups[4], seed=1)
    graphs = joint_graph.split(joint_graph.trace(stage, torch.zeros(1, 1, 32)))
    (bias,) = stage.buffers()
    x, grad = torch.randn(2, 1, 1, 32, generator=torch.Generator().manual_seed(rank))
    out = {}
    for name, expert in {"own": 2 * rank, "next": (2 * rank + 2) % 8, "last": 7, "first": 0}.items():
        bias.zero_()[expert] = 10.0
        out[name] = (joint_graph.run(stage, x, grad, graphs), joint_graph.eager(stage, x, grad))
    return out


def main(directory: str) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = [dist.new_group([r]) for r in range(RANKS)]
    groups = {1: alone[rank], 2: pairs[rank // 2], 4: dist.group.WORLD}
    results = {
        "exchanges": exchanges(rank, groups),
        "default": expert_parallel(groups, functools.partial(three_layers, MoE)),
        "plain": expert_parallel(groups, functools.partial(three_layers, PlainMoE)),
        **{
            f"{model}/{kind}": expert_parallel(groups, functools.partial(one_layer, model, kind))
            for model in cases.MOE
            for kind in cases.ROUTINGS
        },
        "skewed": skewed_graphs(rank, groups),
    }
    torch.save(results, f"{directory}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    end_rank()


if __name__ == "__main__":
    main(sys.argv[1])
