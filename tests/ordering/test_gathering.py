"""Messages of ranks that plan together: where their tensors lie."""

import pytest
import torch
import torch.distributed as dist

from annopipe.ordering.gathering import gather_digests, message_device


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backends", "device"),
    [("cuda:nccl", "cuda"), ("cpu:gloo,cuda:gloo", "cpu"), ("cuda:nccl,cpu:gloo", "cpu"), ("xpu:xccl", "xpu")],
)
def test_messages_lie_on_the_cpu_unless_the_group_has_no_backend_for_it(monkeypatch, backends, device):
    monkeypatch.setattr(dist, "get_backend_config", lambda _group: backends)
    assert message_device(None) == torch.device(device)


def test_a_rank_alone_gets_its_own_digest(group):
    (one,) = gather_digests(["launch", "wait"], group.group_name)
    assert one[0] == 2
    assert gather_digests(["launch", "wait"], group.group_name) == [one]
    assert gather_digests(["wait", "launch"], group.group_name) != [one]
