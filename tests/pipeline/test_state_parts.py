"""Parts of whole tensors on one rank; several ranks are in the program parallel_cases.py."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from annopipe.pipeline.state_parts import as_whole, take


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_only_what_a_pattern_names_becomes_a_part(mesh):
    sharded, value = {"*.experts.*": mesh}, torch.ones(2, 3)
    assert as_whole("a.experts.up", value, sharded).placements == (Shard(0),)
    for name, other in (("a.router", value), ("a.experts.step", torch.ones(())), ("a.experts.lr", 0.1)):
        assert as_whole(name, other, sharded) is other


def test_a_whole_tensor_and_another_placement_fill_a_part(mesh):
    whole = torch.arange(4.0)
    for value in (whole, distribute_tensor(whole, mesh, [Replicate()]), distribute_tensor(whole, mesh, [Shard(0)])):
        held = distribute_tensor(torch.zeros(4), mesh, [Shard(0)])
        assert take("a", value, held) is held
        assert torch.equal(held.full_tensor(), whole)
        assert torch.equal(take("a", value, torch.zeros(4)), whole)
    assert take("a", 0.5, held) == 0.5


def test_what_is_taken_is_a_copy():
    value, held = torch.ones(2), torch.zeros(2)
    take("a", value, held).add_(1)
    assert value.tolist() == [1, 1]
