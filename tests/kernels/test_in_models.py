"""The operators in a model's graphs, as on a GPU: tags, halves, costs; every result equal to eager and the CPU's."""

import collections
import dataclasses

import pytest
import torch
import torch.distributed as dist

import annopipe as ap
from annopipe import kernels
from annopipe.errors import GraphError
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.graphs.helpers import check_against_eager

CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=1, dense_layers=0, expert_sms=16)
OURS = ("annopipe.permute.default", "annopipe.unpermute.default", "annopipe.row_products.default")
GROUPED = ("annopipe.grouped_mm.default", "annopipe.grouped_mm_weight_grad.default")


@pytest.fixture(scope="module")
def stage():
    """A stage, and its graphs traced as on a GPU: with our operators, which on the CPU are PyTorch's operations."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = DeepSeekV3Stage(CONFIG, group=dist.group.WORLD)
    x = torch.randn(2, 5, CONFIG.hidden, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain = [made(x), *torch.autograd.grad(made(x).sum(), [*made.parameters(), x])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "has_kernels", lambda *_operands: True)
        ours = [made(x), *torch.autograd.grad(made(x).sum(), [*made.parameters(), x])]
        yield made, x, ap.trace(made, (x,)), plain, ours
    dist.destroy_process_group()


def targets(graph):
    return collections.Counter(str(row.node.target) for row in ap.region_table(graph))


def test_are_in_the_graphs_with_their_tags(stage):
    graphs = stage[2]
    forward, backward = targets(graphs.forward), targets(graphs.backward)
    assert [forward[name] for name in OURS] == [2, 2, 0]  # to the experts and back, before and behind the exchange
    assert [backward[name] for name in OURS] == [2, 2, 1]
    for graph in (graphs.forward, graphs.backward):
        for row in ap.region_table(graph):
            if str(row.node.target) in OURS:
                assert row.kind == "compute"
                assert row.rule == "tag"
                assert row.region.rpartition("/")[2] in ("router", "experts", "unpermute")


def test_halves_and_the_whole_are_equal_to_eager(stage):
    made, x, graphs, _, _ = stage
    check_against_eager(made, (x,), graphs=graphs)


def test_weight_gradients_are_in_one_half_and_the_rest_in_the_other(stage):
    graphs = stage[2]
    first, second = targets(graphs.backward_input), targets(graphs.backward_weight)
    assert [first[name] for name in (*OURS, *GROUPED)] == [2, 2, 1, 2, 0]
    assert [second[name] for name in (*OURS, *GROUPED)] == [0, 0, 0, 0, 2]


def test_the_limit_on_multiprocessors_is_in_every_grouped_product(stage):
    graphs = stage[2]
    rows = [*ap.region_table(graphs.forward), *ap.region_table(graphs.backward)]
    grouped = [row.node for row in rows if str(row.node.target) in GROUPED]
    assert len(grouped) == 6
    assert {node.args[3] for node in grouped} == {CONFIG.expert_sms}


def test_give_the_results_of_pytorchs_operations_to_the_bit(stage):
    plain, ours = stage[3], stage[4]
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_cost_their_bytes(stage):
    graph = stage[2].forward
    hardware = dataclasses.replace(
        ap.costs.machine("h100"), memory_bandwidth=1e9, memory_fraction=1.0, kernel_launch_s=0.0
    )
    costs = ap.costs.roofline(graph, hardware)
    first, *_, last = [row.node for row in ap.region_table(graph) if str(row.node.target) in OURS]
    slots, width = 10 * CONFIG.top_k, CONFIG.hidden
    permuted = 4 * width * (10 + slots) + 2 * 8 * slots  # tokens and rows, both directions of the order
    assert costs.seconds[first.name] == pytest.approx(permuted / 1e9)
    assert costs.seconds[last.name] == pytest.approx((permuted + 4 * slots) / 1e9)


def test_a_limit_that_is_no_number_of_multiprocessors_is_refused():
    with pytest.raises(GraphError, match="expert_sms is -1; it must be an integer of at least 0"):
        dataclasses.replace(CONFIG, expert_sms=-1)
    with pytest.raises(GraphError, match="sms is -1: give how many multiprocessors it may occupy, or 0 for all"):
        kernels.grouped_mm(torch.ones(2, 1), torch.ones(1, 1, 1), torch.tensor([2]), sms=-1)
