"""Balanced and skewed routing: documented shares, independent of ranks, gradients, one capture for all."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import GraphError
from annopipe.models import MixtralConfig, Routing
from annopipe.models.router import Router
from annopipe.models.routing import deal
from tests.models import cases, joint_graph

TOKENS = 20_000


def router_of(routing, *, experts=8, top_k=2, rank=0, name="router", dtype=torch.float32, model="mixtral"):
    config = dataclasses.replace(cases.CONFIGS[model], experts=experts, top_k=top_k, routing=routing)
    torch.manual_seed(0)
    router = Router(config, dtype=dtype, rank=rank)
    router.reset_buffers(name)
    return router


def counts_of(router, tokens=TOKENS, seed=1):
    experts = router(cases.rows(seed, tokens, cases.HIDDEN)).experts
    assert all(len(set(row)) == len(row) for row in experts[:50].tolist())
    return torch.bincount(experts.flatten(), minlength=router.config.experts)


def drawn_without_replacement(shares, top_k):
    """How probable each expert is to be among the ``top_k`` drawn: the sum over all sequences of draws."""
    among = [0.0] * len(shares)
    for chosen in itertools.permutations(range(len(shares)), top_k):
        probability, left = 1.0, 1.0
        for expert in chosen:
            probability *= shares[expert] / left
            left -= shares[expert]
        for expert in chosen:
            among[expert] += probability
    return among


@given(exponent=st.floats(0, 5), experts=st.integers(1, 64), idle=st.integers(0, 63))
def test_shares_fall_as_the_power_of_the_place_and_add_up_to_one(exponent, experts, idle):
    idle = min(idle, experts - 1)
    shares = Routing("skewed", exponent, idle).shares(experts)
    assert sum(shares) == pytest.approx(1)
    assert shares[experts - idle :] == (0.0,) * idle
    for place, share in enumerate(shares[: experts - idle]):
        assert share == pytest.approx(shares[0] * (place + 1) ** -exponent)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_measured_shares_of_one_expert_per_token_are_the_documented_ones(exponent):
    routing = Routing("skewed", exponent, seed=3)
    router = router_of(routing, top_k=1)
    measured = counts_of(router)[routing.order(8, "router")] / TOKENS
    torch.testing.assert_close(measured, torch.tensor(routing.shares(8)), atol=0.012, rtol=0)
    if exponent == 1.0:  # what the documentation says: 37% for the first of 8, 5% for the last
        assert [round(share.item(), 2) for share in measured] == pytest.approx(
            [0.37, 0.18, 0.12, 0.09, 0.07, 0.06, 0.05, 0.05], abs=0.011
        )


@pytest.mark.parametrize("top_k", [2, 3])
def test_measured_shares_of_several_experts_per_token_are_those_of_drawing_without_replacement(top_k):
    routing = Routing("skewed", exponent=1.0, idle=1, seed=5)
    measured = counts_of(router_of(routing, top_k=top_k))[routing.order(8, "router")] / TOKENS
    expected = drawn_without_replacement(routing.shares(8)[:7], top_k)
    torch.testing.assert_close(measured, torch.tensor([*expected, 0.0]), atol=0.012, rtol=0)


def test_shares_do_not_depend_on_what_the_tokens_are():
    routing = Routing("skewed")
    router = router_of(routing, top_k=1)
    equal_tokens = router(torch.ones(TOKENS, cases.HIDDEN)).experts.flatten()
    measured = torch.bincount(equal_tokens, minlength=8)[routing.order(8, "router")] / TOKENS
    torch.testing.assert_close(measured, torch.tensor(routing.shares(8)), atol=0.012, rtol=0)


def test_idle_experts_get_no_token_and_the_others_do():
    routing = Routing("skewed", exponent=0.0, idle=5)
    used = counts_of(router_of(routing)).nonzero().flatten()
    assert set(used.tolist()) == set(routing.order(8, "router")[:3].tolist())


@settings(deadline=None)
@given(tokens=st.integers(0, 40), experts=st.integers(1, 12), top_k=st.integers(1, 12), ranks=st.integers(1, 4))
def test_balanced_routing_gives_every_expert_as_many_tokens_on_each_rank_and_on_all(tokens, experts, top_k, ranks):
    top_k = min(top_k, experts)
    order = Routing("balanced", seed=1).order(experts, "router")
    parts = [deal(order, tokens, top_k, rank * tokens) for rank in range(ranks)]
    for chosen in (*parts, torch.cat(parts)):
        counts = torch.bincount(chosen.flatten(), minlength=experts)
        assert counts.max() - counts.min() <= 1
        assert all(len(set(row)) == top_k for row in chosen.tolist())


@pytest.mark.parametrize("kind", ["balanced", "skewed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_parts_of_a_batch_are_routed_as_the_whole(kind, ranks):
    routing = Routing(kind, idle=2)
    h = cases.rows(4, 40, cases.HIDDEN)
    parts = [router_of(routing, rank=rank)(part).experts for rank, part in enumerate(h.chunk(ranks))]
    assert torch.equal(torch.cat(parts), router_of(routing)(h).experts)


def test_skewed_routing_depends_on_the_tokens_and_on_nothing_else():
    router = router_of(Routing("skewed"))
    h, other = cases.rows(1, 50, cases.HIDDEN), cases.rows(2, 50, cases.HIDDEN)
    first = router(h).experts
    assert torch.equal(router(h * 3).experts, first), "only signs matter, so rounding changes no route"
    assert not torch.equal(router(other).experts, first)
    assert torch.equal(router(h).experts, first)
    torch.manual_seed(9)
    assert torch.equal(router_of(Routing("skewed"))(h).experts, first)


@pytest.mark.parametrize("kind", ["balanced", "skewed"])
def test_layers_and_seeds_have_other_popular_experts(kind):
    stage = cases.moe_stage("mixtral", kind, layers=4)
    names = ("order",) if kind == "balanced" else ("shares", "salt")
    values = [[getattr(block.feed.router, name).tolist() for name in names] for block in stage.blocks.values()]
    assert all(a != b for a, b in itertools.combinations(values, 2))
    orders = {tuple(Routing(kind, seed=seed).order(8, "router").tolist()) for seed in range(10)}
    assert len(orders) == 10


@pytest.mark.parametrize("kind", ["balanced", "skewed"])
def test_a_stage_is_routed_as_the_whole_model(kind):
    whole = cases.moe_stage("mixtral", kind, layers=3)
    last = type(whole)(whole.config, [2])
    buffers = dict(whole.named_buffers())
    assert all(torch.equal(value, buffers[name]) for name, value in last.named_buffers())


@pytest.mark.parametrize("model", cases.MOE)
@pytest.mark.parametrize("kind", cases.ROUTINGS)
def test_scores_weigh_the_experts_and_the_router_gets_gradients(kind, model):
    stage = cases.moe_stage(model, kind, dtype=torch.float64)
    router = stage.get_submodule("blocks.0.feed.router")
    h = cases.rows(1, 6, cases.HIDDEN).double()
    route = router(h)
    logits = h @ router.weight.t()
    scores = logits.sigmoid() if router.config.scoring == "sigmoid" else logits.softmax(-1)
    weights = scores.gather(1, route.experts)
    weights = weights / weights.sum(1, keepdim=True) * router.config.routed_scaling
    torch.testing.assert_close(route.weights, weights, rtol=1e-12, atol=1e-12)
    stage(h.unsqueeze(0)).square().sum().backward()
    assert router.weight.grad.any()


def test_one_capture_serves_every_exponent_seed_and_number_of_idle_experts():
    stage = cases.moe_stage("mixtral", "skewed")
    x, grad = cases.rows(3, 2, 1, 5, cases.HIDDEN)
    graphs = joint_graph.split(joint_graph.trace(stage, x))
    config = stage.config
    for routing in (Routing("skewed", 3.0, seed=4), Routing("skewed", 0.0, idle=6), Routing("skewed", 1.0, seed=8)):
        other = type(stage)(dataclasses.replace(config, routing=routing))
        graph, eager = joint_graph.run(other, x, grad, graphs), joint_graph.eager(other, x, grad)
        assert all(torch.equal(a, b) for a, b in zip(graph, eager, strict=True))


def test_checkpoints_do_not_hold_the_routing():
    keys = [set(cases.moe_stage("mixtral", kind).state_dict()) for kind in cases.ROUTINGS]
    assert keys[0] == keys[1] == keys[2]


@pytest.mark.parametrize("kind", ["balanced", "skewed"])
def test_a_stage_that_is_filled_later_has_the_same_routing(kind):
    built = cases.moe_stage("mixtral", kind)
    later = cases.moe_stage("mixtral", kind, device="meta")
    later.to_empty(device="cpu")
    later.reset_parameters()
    expected = dict(built.named_buffers())
    assert len(expected) > 1
    assert all(torch.equal(value, expected[name]) for name, value in later.named_buffers())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "even"}, "kind is 'even'; it must be one of learned, balanced, skewed"),
        ({"exponent": -1.0}, "exponent is -1.0; it must be finite and not negative"),
        ({"exponent": float("nan")}, "exponent is nan; it must be finite"),
        ({"idle": -1}, "idle is -1; idle is a number of experts"),
        ({"idle": 1.5}, "idle is 1.5; idle is a number of experts"),
        ({"seed": True}, "seed is True; idle is a number of experts, seed any integer"),
    ],
    ids=str,
)
def test_routings_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(GraphError, match=f"Routing: {message}"):
        Routing(**fields)


def test_a_config_refuses_a_routing_that_does_not_fit():
    with pytest.raises(GraphError, match="top_k is 2, but with 7 of 8 experts idle"):
        dataclasses.replace(MixtralConfig.tiny(), routing=Routing("skewed", idle=7))
    with pytest.raises(GraphError, match="MixtralConfig: routing is 'skewed'; give a Routing"):
        dataclasses.replace(MixtralConfig.tiny(), routing="skewed")
