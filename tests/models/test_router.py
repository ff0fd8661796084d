"""The router against a reference in plain Python, and its order among equals."""

import dataclasses
import math

import pytest
import torch

from annopipe.models import DeepSeekV3Config
from annopipe.models.router import Router

TINY = DeepSeekV3Config.tiny()
CONFIGS = {
    "groups": TINY,
    "large groups": dataclasses.replace(TINY, experts=12, expert_groups=3, groups_kept=2, top_k=3),
    "one expert per group": dataclasses.replace(TINY, expert_groups=8, groups_kept=3, top_k=3),
    "no groups": dataclasses.replace(TINY, expert_groups=1, groups_kept=1, top_k=4),
    "softmax": dataclasses.replace(TINY, scoring="softmax", norm_topk=False, routed_scaling=1.0),
}


def make_router(config, bias=0.0):
    torch.manual_seed(0)
    router = Router(config, dtype=torch.float64)
    router.selection_bias += bias * torch.randn(config.experts)
    return router


def route_one(config, scores, bias):
    """Experts and weights of one token; ``scores`` and ``bias`` are lists with a number for each expert."""
    biased = [s + b for s, b in zip(scores, bias, strict=True)]
    size = config.experts_per_group
    groups = [list(range(g * size, (g + 1) * size)) for g in range(config.expert_groups)]
    strength = [sum(sorted((biased[e] for e in group), reverse=True)[:2]) for group in groups]
    kept = sorted(range(len(groups)), key=lambda g: (-strength[g], g))[: config.groups_kept]
    open_experts = sorted((e for g in kept for e in groups[g]), key=lambda e: (-biased[e], e))
    chosen = open_experts[: config.top_k]
    weights = [scores[e] for e in chosen]
    if config.norm_topk:
        weights = [w / sum(weights) for w in weights]
    return chosen, [w * config.routed_scaling for w in weights]


@pytest.mark.parametrize("bias", [0.0, 0.5])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_equals_the_reference(config, bias):
    router = make_router(config, bias)
    h = torch.randn(20, config.hidden, dtype=torch.float64)
    route = router(h)
    for token in range(20):
        logits = (router.weight @ h[token]).tolist()
        if config.scoring == "sigmoid":
            scores = [1 / (1 + math.exp(-x)) for x in logits]
        else:
            total = sum(math.exp(x) for x in logits)
            scores = [math.exp(x) / total for x in logits]
        experts, weights = route_one(config, scores, router.selection_bias.double().tolist())
        assert route.experts[token].tolist() == experts
        assert route.weights[token].tolist() == pytest.approx(weights, rel=1e-12)


def test_among_equal_scores_the_lower_expert_wins():
    route = make_router(TINY)(torch.zeros(3, TINY.hidden, dtype=torch.float64))
    assert route.experts.tolist() == [[0, 1]] * 3


def test_bias_moves_the_choice_and_not_the_weights():
    router = make_router(dataclasses.replace(TINY, norm_topk=False, routed_scaling=1.0))
    h = torch.randn(5, TINY.hidden, dtype=torch.float64)
    router.selection_bias[6:] = 10.0
    route = router(h)
    assert sorted({e for row in route.experts.tolist() for e in row}) == [6, 7]
    assert torch.equal(route.weights, (h @ router.weight.t()).sigmoid().gather(1, route.experts))


def test_forward_leaves_the_bias_alone_and_gives_it_no_gradient():
    router = make_router(TINY, bias=0.5)
    before = router.selection_bias.clone()
    router(torch.randn(5, TINY.hidden, dtype=torch.float64)).weights.sum().backward()
    assert torch.equal(router.selection_bias, before)
    assert router.selection_bias.grad is None
    assert router.weight.grad is not None


def test_weights_of_half_precision_tokens_are_float32():
    router = Router(TINY, dtype=torch.bfloat16)
    assert router(torch.randn(5, TINY.hidden, dtype=torch.bfloat16)).weights.dtype == torch.float32
