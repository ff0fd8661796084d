from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import distribute_tensor

import annopipe as ap
from annopipe.graphs.parameter_sharding import sum_dtypes

# Collectives on real ranks, and equality with eager there: tests/pipeline/sharded_cases.py.


@pytest.fixture
def mesh(group_of_one: dist.ProcessGroup) -> DeviceMesh:
    return init_device_mesh("cpu", (1,))


def linear(dtype: torch.dtype = torch.float32) -> nn.Linear:
    return nn.Linear(3, 2, dtype=dtype)


def test_a_plain_stage_has_neither_graph() -> None:
    graphs = ap.trace(linear(), (torch.ones(4, 3),))
    assert (graphs.unshard, graphs.reduce_grad) == (None, None)
    assert graphs.of_kind("UNSHARD") is graphs.of_kind("REDUCE_GRAD") is None


_ops = torch.ops._c10d_functional


def gathered(shard: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    return _ops.wait_tensor(_ops.all_gather_into_tensor(shard, 1, group.group_name))


class Gather(torch.autograd.Function):
    """A whole bfloat16 weight from its shard; with one rank DTensors leave the collectives out."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return gathered(shard.to(torch.bfloat16), group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _ops.wait_tensor(_ops.reduce_scatter_tensor(gradient.float(), "sum", 1, ctx.group.group_name)) / 2, None


class Sharded(nn.Module):
    def __init__(self, group: dist.ProcessGroup, reads: int = 1) -> None:
        super().__init__()
        self.group, self.reads = group, reads
        self.weight, self.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.reads):
            x = torch.tanh(x @ Gather.apply(self.weight, self.group).t() + self.bias)
        return x


def example() -> torch.Tensor:
    return torch.ones(2, 3, dtype=torch.bfloat16)


def test_gathering_and_reducing_are_graphs_of_their_own(group_of_one: dist.ProcessGroup) -> None:
    graphs = ap.trace(Sharded(group_of_one), (example(),))
    assert [p.name for p in graphs.unshard.inputs] == ["param.weight"]
    assert [(p.name, p.dtype) for p in graphs.unshard.outputs] == [("unsharded.weight", torch.bfloat16)]
    assert {p.name for p in graphs.backward.outputs} == {"unreduced.weight", "param_grad.bias"}
    assert [p.name for p in graphs.reduce_grad.outputs] == ["param_grad.weight"]
    assert sum_dtypes(graphs.reduce_grad) == {"unreduced.weight": torch.float32}
    assert (graphs.unshard.launch_count, graphs.reduce_grad.launch_count) == (1, 1)
    assert graphs.forward.launch_count == graphs.backward.launch_count == 0
    assert [p.source for p in graphs.gradient_ports] == ["bias", "weight"]
    assert graphs.of_kind("UNSHARD") is graphs.unshard
    assert graphs.of_kind("REDUCE_GRAD") is graphs.reduce_grad
    assert {row.phase for row in ap.region_table(graphs.reduce_grad)} <= {"input_grad", "weight_grad"}


def test_several_reads_gather_once_and_reduce_each(group_of_one: dist.ProcessGroup) -> None:
    graphs = ap.trace(Sharded(group_of_one, reads=3), (example(),))
    assert (graphs.unshard.launch_count, graphs.reduce_grad.launch_count) == (1, 3)
    names = [p.name for p in graphs.reduce_grad.inputs]
    assert [p.source for p in graphs.reduce_grad.inputs] == ["weight"] * 3
    assert names[0] == "unreduced.weight"
    assert all(name.startswith("unreduced.weight.") for name in names[1:])


def test_no_view_of_a_gathered_weight_is_saved(group_of_one: dist.ProcessGroup) -> None:
    graphs = ap.trace(Sharded(group_of_one, reads=2), (example(),))
    assert "unsharded.weight" in {p.name for p in graphs.backward.inputs}
    assert all(p.shape == (2, 3) for p in graphs.forward.outputs if p.role == "saved")


def test_a_cast_of_a_distributed_parameter_happens_once_per_step(mesh: DeviceMesh) -> None:
    module = ap.shard(linear(), mesh, mode="replicate", param_dtype=torch.bfloat16)
    graphs = ap.trace(module, (torch.ones(4, 3, dtype=torch.bfloat16),))
    assert {p.name: p.dtype for p in graphs.unshard.outputs} == {
        "unsharded.weight": torch.bfloat16,
        "unsharded.bias": torch.bfloat16,
    }
    assert not [p for p in graphs.forward.outputs if p.role == "saved" and "weight" in p.name]


def test_a_gather_of_what_depends_on_data_stays(group_of_one: dist.ProcessGroup) -> None:
    class Data(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return gathered(x, group_of_one)

    graphs = ap.trace(Data(), (torch.ones(2, 3),))
    assert graphs.unshard is None
    assert graphs.forward.launch_count == 1


def test_gradients_are_distributed_as_their_parameters(mesh: DeviceMesh) -> None:
    module = ap.shard(linear(), mesh)
    graphs = ap.trace(module, (torch.ones(4, 3),))
    values = {**graphs.bind(module), **graphs.bind_inputs(torch.ones(4, 3))}
    values |= graphs.unshard(values) if graphs.unshard else {}
    values |= graphs.forward(values)
    assert graphs.backward is not None
    values |= graphs.backward({**values, "tangent.output": torch.ones(4, 2)})
    values |= graphs.reduce_grad(values) if graphs.reduce_grad else {}
    gradients = graphs.parameter_gradients(values)
    assert gradients["weight"].placements == module.weight.placements
    assert gradients["weight"].full_tensor().equal(torch.full((2, 3), 4.0))


def test_a_parameter_that_lies_otherwise_than_when_traced_is_refused(mesh: DeviceMesh) -> None:
    graphs = ap.trace(ap.shard(linear(), mesh), (torch.ones(4, 3),))
    with pytest.raises(ap.CaptureError, match="when the module was traced and is a plain tensor now: trace again"):
        graphs.bind(linear())


def test_a_sum_that_is_spread_over_ranks_is_no_parameter(mesh: DeviceMesh) -> None:
    module = linear()
    partial = torch.distributed.tensor.DTensor.from_local(torch.ones(2), mesh, [torch.distributed.tensor.Partial()])
    module.bias = nn.Parameter(partial)
    with pytest.raises(ap.CaptureError, match="a sum that is still spread over the ranks: redistribute it"):
        ap.trace(module, (torch.ones(4, 3),))


def test_arguments_and_outputs_are_plain_tensors(mesh: DeviceMesh) -> None:
    with pytest.raises(ap.CaptureError, match="argument input is a DTensor"):
        ap.trace(linear(), (distribute_tensor(torch.ones(4, 3), mesh),))
