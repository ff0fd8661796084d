"""Parameters are shared on a fake group, too, where nobody can be asked: to plan for ranks that are not there."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

import annopipe as ap


@pytest.fixture
def mesh():
    dist.init_process_group("fake", rank=0, world_size=4, store=dist.HashStore())
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


def test_fake_parameters_are_shared_among_ranks_that_are_not_there(mesh):
    with FakeTensorMode():
        module = ap.shard(nn.Linear(8, 8), mesh)
    graphs = ap.trace(module, (torch.ones(2, 8),))
    assert graphs.unshard.launch_count == 2
    assert module.weight.to_local().shape == (2, 8)
