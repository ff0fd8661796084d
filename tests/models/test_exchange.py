"""The token exchange: equal to the functional collective, differentiable, one launch and one wait each way."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from annopipe.errors import GraphError
from annopipe.graphs.process_groups import absent_group
from annopipe.models.exchange import exchange, exchange_counts, group_name, group_place, launch, peer_sizes, wait
from tests.models import ep_worker, joint_graph

FIVE = torch.tensor([5])


@pytest.mark.parametrize("dtype", ep_worker.DTYPES, ids=str)
@pytest.mark.parametrize("splits", ep_worker.SPLITS)
def test_equals_the_functional_collective_in_value_and_gradient(ranks, splits, dtype):
    for rank, result in enumerate(ranks):
        ours, our_grad, theirs, their_grad = result["exchanges"][splits, dtype]
        assert ours.shape[0] == sum(row[rank] for row in ep_worker.SPLITS[splits])
        assert ours.dtype == our_grad.dtype == dtype
        assert torch.equal(ours, theirs)
        assert torch.equal(our_grad, their_grad)


def test_gradients_are_right_twice(group_of_one):
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def through(x):
        return exchange(x, FIVE, FIVE, 5, group_of_one) ** 2

    assert torch.autograd.gradcheck(through, (x,))
    assert torch.autograd.gradgradcheck(through, (x,))


def test_group_is_given_as_object_or_name(group_of_one):
    x = torch.randn(5, 2)
    assert torch.equal(exchange(x, FIVE, FIVE, 5, group_of_one), exchange(x, FIVE, FIVE, 5, group_name(group_of_one)))
    assert group_place(group_of_one) == group_place(group_name(group_of_one)) == (0, 1)


def test_rows_that_are_not_contiguous_are_sent(group_of_one):
    x = torch.arange(10.0).view(2, 5).t()
    assert torch.equal(wait(launch(x, FIVE, FIVE, 5, group_of_one)), x)


def test_counts_of_one_rank_come_back(group_of_one):
    assert exchange_counts(torch.tensor([3, 0, 2]), group_of_one).tolist() == [3, 0, 2]


def test_trace_has_one_host_read_and_launches_and_waits_in_pairs(group_of_one):
    class Module(nn.Module):
        def forward(self, x):
            counts = torch.full((2,), 3, device=x.device)
            sizes = peer_sizes(counts, exchange_counts(counts, group_of_one), 1)
            return exchange(x * 2, sizes.send, sizes.recv, sizes.total, group_of_one)

    x = torch.randn(6, 2)
    joint = joint_graph.trace(Module(), x)
    found = joint_graph.counts(joint.graph)
    assert found[joint_graph.HOST_READ] == 1
    assert found["annopipe.exchange.default"] == 2
    waits = [n for n in joint.graph.nodes if joint_graph.target(n) == joint_graph.WAIT]
    assert len(waits) == 3
    assert all(joint_graph.target(n.args[0]) in joint_graph.LAUNCHES for n in waits)
    (forward, backward) = [n for n in joint.graph.nodes if joint_graph.target(n) == "annopipe.exchange.default"]
    assert joint_graph.side(backward) == "backward"
    assert backward.args[1:3] == (forward.args[2], forward.args[1])


@pytest.mark.parametrize(
    ("send", "recv", "total", "message"),
    [
        ([4], [5], 5, r"send sizes \[4\] must add to the 5 rows of x"),
        ([5], [4], 5, r"receive sizes \[4\] to total 5"),
        ([2, 3], [5], 5, "2 send and 1 receive sizes for a group of 1 ranks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(group_of_one, send, recv, total, message):
    with pytest.raises(GraphError, match=message):
        exchange(torch.randn(5, 2), torch.tensor(send), torch.tensor(recv), total, group_of_one)


def test_counts_that_cannot_be_shared_out_are_refused(monkeypatch):
    monkeypatch.setattr("annopipe.models.exchange.group_place", lambda group: (0, 3))
    with pytest.raises(GraphError, match="8 experts cannot be shared equally by 3 ranks"):
        exchange_counts(torch.zeros(8, dtype=torch.int64), "experts")


def test_group_of_other_ranks_is_refused():
    with pytest.raises(GraphError, match="-100 is not a process group: is this rank a member"):
        group_name(dist.GroupMember.NON_GROUP_MEMBER)  # type: ignore[arg-type]


def test_sizes_off_the_cpu_are_refused(group_of_one):
    sizes = torch.tensor([5], device="meta")
    with pytest.raises(GraphError, match="the sizes are on meta; move both to the cpu"):
        torch.ops.annopipe.exchange.default.redispatch(
            torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), torch.randn(5, 2), sizes, sizes, 5, "0"
        )


def test_a_group_that_is_not_there_is_refused():
    with pytest.raises(GraphError, match="call init_process_group first, or pass group=None"):
        group_place("nowhere")


def test_a_group_of_absent_ranks_has_a_size_and_a_name_while_it_lasts():
    with absent_group(16) as group:
        assert group_place(group) == group_place(group.group_name) == (0, 16)
        name = group.group_name
    with pytest.raises(GraphError, match="call init_process_group first"):
        group_place(name)
