"""A machine with round numbers, so that costs can be computed by hand, and process groups that are not there."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.costs import Hardware, Link

TOY = Hardware(
    name="toy",
    peak_flops={"float32": 1e12, "bfloat16": 4e12, "float8_e4m3fn": 8e12},
    memory_bandwidth=1e11,
    inside=Link(1e10, fraction=1.0, hop_s=1e-6),
    between=Link(1e9, fraction=1.0, hop_s=1e-5),
    ranks_per_node=8,
    matmul_fraction=1.0,
    attention_fraction=0.5,
    memory_fraction=1.0,
    kernel_launch_s=0.0,
    host_read_s=1e-4,
    collective_start_s=2e-6,
    collective_issue_s=3e-6,
)


@contextlib.contextmanager
def fake_ranks(ranks: int) -> Iterator[dist.ProcessGroup]:
    """A process group of which only this rank is there: enough to trace."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=dist.HashStore())
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def seconds_of(graph: ap.StageGraph, operation: str, costs: ap.NodeCosts) -> float:
    """The cost of the one node that calls an operation, such as "aten.mm"."""
    (found,) = [row for row in ap.region_table(graph) if str(row.node.target).startswith(f"{operation}.")]
    return costs.seconds[found.node.name]


def traced(module: nn.Module, *tensors: torch.Tensor) -> ap.StageGraph:
    """The forward graph."""
    return ap.trace(module, tensors).forward
