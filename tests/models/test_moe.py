"""The expert layer: against a loop over tokens, over 1, 2 and 4 ranks, and what its trace holds."""

import dataclasses

import pytest
import torch
from torch import nn

from annopipe.errors import GraphError
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, MoE, PlainMoE
from tests.models import cases, joint_graph

TINY = DeepSeekV3Config.tiny()
ONE_LAYER = dataclasses.replace(TINY, layers=1)


def make_moe(config=TINY, **options):
    torch.manual_seed(0)
    return MoE(config, dtype=torch.float64, **options)


def reference(moe, x):
    """One token and one expert at a time."""
    inner = moe.config.moe_intermediate
    out = []
    for token in x.flatten(0, -2):
        route = moe.router(token.unsqueeze(0))
        total = moe.shared(token) if moe.shared is not None else torch.zeros_like(token)
        for expert, weight in zip(route.experts[0].tolist(), route.weights[0], strict=True):
            gate, up = (token @ moe.experts.gate_up[expert]).split(inner)
            total = total + weight * ((gate * gate.sigmoid() * up) @ moe.experts.down[expert])
        out.append(total)
    return torch.stack(out).view_as(x)


@pytest.mark.parametrize("shared_experts", [0, 1, 2])
def test_equals_a_loop_over_tokens_in_value_and_gradients(shared_experts):
    moe = make_moe(dataclasses.replace(TINY, shared_experts=shared_experts))
    x = torch.randn(2, 5, TINY.hidden, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x)
    wanted = [*moe.parameters(), x]
    ours, theirs = moe(x), reference(moe, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    pairs = zip(torch.autograd.grad(ours, wanted, grad), torch.autograd.grad(theirs, wanted, grad), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_group_of_one_equals_no_group(group_of_one):
    alone = DeepSeekV3Stage(TINY, dtype=torch.float64)
    grouped = DeepSeekV3Stage(TINY, group=group_of_one, dtype=torch.float64)
    x, grad = torch.randn(2, 2, 5, TINY.hidden, dtype=torch.float64)
    for a, b in zip(joint_graph.eager(alone, x, grad), joint_graph.eager(grouped, x, grad), strict=True):
        assert torch.equal(a, b)


def whole(ranks, kind, size, name):
    """A value of the whole model put together from the first group of ``size`` ranks."""
    parts = [ranks[r][kind][size][name] for r in range(size)]
    if ".experts." in name or name in ("output", "input"):
        return torch.cat(parts)
    return sum(parts)


@pytest.mark.parametrize("kind", ["default", "plain"])
@pytest.mark.parametrize("size", [2, 4])
def test_number_of_ranks_changes_no_output_and_no_gradient(ranks, size, kind):
    one = ranks[0]["default"][1]
    assert set(one) == set(ranks[0][kind][size])
    for name, expected in one.items():
        torch.testing.assert_close(whole(ranks, kind, size, name), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", cases.MOE)
@pytest.mark.parametrize("kind", cases.ROUTINGS)
@pytest.mark.parametrize("size", [2, 4])
def test_number_of_ranks_changes_nothing_for_any_model_and_routing(ranks, size, kind, model):
    one = ranks[0][f"{model}/{kind}"][1]
    for name, expected in one.items():
        torch.testing.assert_close(whole(ranks, f"{model}/{kind}", size, name), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", cases.MOE)
def test_skewed_routing_leaves_ranks_without_tokens_and_balanced_none(ranks, model):
    def busy(kind):
        return [bool(rank[f"{model}/{kind}"][4]["blocks.0.feed.experts.down"].any()) for rank in ranks]

    assert all(busy("balanced"))
    assert not all(busy("skewed"))


def test_one_capture_serves_0_1_and_many_rows_and_equals_eager(ranks):
    for name in ("own", "next", "last", "first"):
        for rank in ranks:
            graph, eager = rank["skewed"][name]
            assert len(graph) == len(eager)
            assert all(torch.equal(a, b) for a, b in zip(graph, eager, strict=True))


def test_rank_without_rows_gets_zero_gradients_for_its_experts(ranks):
    config = dataclasses.replace(TINY, top_k=1, layers=1, q_lora_rank=None)
    names = ["output", *(name for name, _ in DeepSeekV3Stage(config).named_parameters()), "input"]
    down = names.index("blocks.0.feed.experts.down")
    for rank, result in enumerate(ranks):
        assert bool(result["skewed"]["first"][0][down].any()) == (rank == 0)
        assert bool(result["skewed"]["own"][0][down].any())


@pytest.fixture(scope="module")
def joint(group_of_one):
    """The joint graph of two layers."""
    return joint_graph.trace(DeepSeekV3Stage(TINY, group=group_of_one), torch.randn(2, 5, TINY.hidden)).graph


def test_trace_has_one_host_read_three_launches_forward_and_two_backward(joint):
    found = joint_graph.counts(joint)
    launches = [n for n in joint.nodes if joint_graph.target(n) in joint_graph.LAUNCHES]
    waits = [n for n in joint.nodes if joint_graph.target(n) == joint_graph.WAIT]
    assert found[joint_graph.HOST_READ] == TINY.layers
    assert [joint_graph.side(n) for n in launches] == ["forward"] * 3 * TINY.layers + ["backward"] * 2 * TINY.layers
    assert [n.args[0] for n in waits] == launches
    assert found["annopipe.grouped_mm.default"] == 4 * TINY.layers
    assert found["annopipe.grouped_mm_weight_grad.default"] == 2 * TINY.layers


def test_launches_and_waits_carry_their_region_forward_and_backward(joint):
    known = (*joint_graph.LAUNCHES, joint_graph.WAIT)
    found = [(joint_graph.side(n), joint_graph.region(n)) for n in joint.nodes if joint_graph.target(n) in known]
    forward = [("forward", f"block{b}/moe/{name}") for b in (0, 1) for name in ["dispatch"] * 4 + ["combine"] * 2]
    backward = [("backward", f"block{b}/moe/{name}") for b in (1, 0) for name in ["combine"] * 2 + ["dispatch"] * 2]
    assert found == forward + backward


def test_shared_experts_do_not_depend_on_the_exchange_of_their_layer(joint):
    waited = set()
    for node in joint.nodes:
        waits = joint_graph.target(node) == joint_graph.WAIT and joint_graph.region(node).startswith("block1")
        if waits or any(argument in waited for argument in node.all_input_nodes):
            waited.add(node)
    shared = [
        n for n in joint.nodes if (joint_graph.side(n), joint_graph.region(n)) == ("forward", "block1/moe/shared")
    ]
    assert shared
    assert not waited.intersection(shared)


def test_without_a_group_nothing_is_exchanged_or_read(group_of_one):
    graph = joint_graph.trace(DeepSeekV3Stage(ONE_LAYER), torch.randn(2, 5, TINY.hidden)).graph
    found = joint_graph.counts(graph)
    assert not any(found[name] for name in (*joint_graph.LAUNCHES, joint_graph.WAIT, joint_graph.HOST_READ))


def test_forward_keeps_nothing_on_the_module():
    moe = make_moe()
    before = {name: set(vars(part)) for name, part in moe.named_modules()}
    moe(torch.randn(2, 5, TINY.hidden, dtype=torch.float64)).sum().backward()
    assert {name: set(vars(part)) for name, part in moe.named_modules()} == before


def test_experts_that_cannot_be_shared_out_are_refused(monkeypatch):
    monkeypatch.setattr("annopipe.models.moe.group_place", lambda group: (0, 3))
    with pytest.raises(GraphError, match="8 experts cannot be shared equally by 3 ranks"):
        MoE(TINY, group="experts")


@pytest.mark.parametrize("kind", cases.ROUTINGS)
def test_plain_variant_has_the_same_parameters_and_results(kind):
    config = dataclasses.replace(TINY, routing=cases.routing(kind, TINY))
    default = make_moe(config)
    plain = PlainMoE(config, dtype=torch.float64)
    plain.load_state_dict(default.state_dict())
    x, grad = torch.randn(2, 2, 5, TINY.hidden, dtype=torch.float64)
    for a, b in zip(joint_graph.eager(default, x, grad), joint_graph.eager(plain, x, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_plain_variant_reads_every_size_on_the_host(group_of_one):
    stage = DeepSeekV3Stage(ONE_LAYER, group=group_of_one, moe=PlainMoE)
    x, grad = torch.randn(2, 2, 5, TINY.hidden)
    joint = joint_graph.trace(stage, x)
    assert joint_graph.counts(joint.graph)[joint_graph.HOST_READ] == 2 + TINY.experts
    graphs = joint_graph.run(stage, x, grad, joint_graph.split(joint))
    assert all(torch.equal(a, b) for a, b in zip(graphs, joint_graph.eager(stage, x, grad), strict=True))


def test_layer_traces_as_one_graph_under_torch_compile():
    moe: nn.Module = MoE(TINY)
    x = torch.randn(2, 5, TINY.hidden)
    assert torch.equal(torch.compile(moe, fullgraph=True, backend="aot_eager")(x), moe(x))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", cases.ROUTINGS)
def test_layer_on_cuda_reads_nothing_on_the_host(kind):
    config = dataclasses.replace(TINY, moe_intermediate=32, routing=cases.routing(kind, TINY))
    moe = MoE(config, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(2, 5, config.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    moe(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        moe(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
