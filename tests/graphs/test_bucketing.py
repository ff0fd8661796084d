import pytest
import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap

# More than one rank: tests/pipeline/sharded_cases.py.


def gathered(shard: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_gather_into_tensor(shard, 1, group.group_name))


class Gathered(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = [gathered(p, self.group) for p in (*self.weights, self.bias)]
        return x @ whole[0] @ whole[1] @ whole[2] + whole[3]


def test_launches_become_one_up_to_the_size(group_of_one: dist.ProcessGroup) -> None:
    module = Gathered(group_of_one).requires_grad_(False)
    graphs = ap.trace(module, (torch.ones(2, 4),))
    graph = graphs.unshard
    assert graph is not None
    assert graph.launch_count == 4
    expected = graph(graphs.bind(module))
    for size, launches in ((2**20, 1), (128, 2), (144, 2), (64, 4)):  # a weight has 64 bytes, the bias 16
        fused = ap.bucket(graph, size_bytes=size)
        assert fused.launch_count == launches
        found = fused(graphs.bind(module))
        assert expected.keys() == found.keys()
        assert all(found[name].equal(value) for name, value in expected.items())
    assert graph.launch_count == 4


def test_other_graphs_and_sizes_are_refused(group_of_one: dist.ProcessGroup) -> None:
    graphs = ap.trace(nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(ap.GraphError, match="this one has inputs of role input: pass graphs.unshard or"):
        ap.bucket(graphs.forward)
    with pytest.raises(ap.GraphError, match="size_bytes=0: give a positive number"):
        ap.bucket(graphs.forward, size_bytes=0)
