"""Latent attention against a reference that computes one score at a time."""

import cmath
import dataclasses

import pytest
import torch
from torch import nn

from annopipe.models import DeepSeekV3Config
from annopipe.models.attention import LatentAttention
from tests.models import joint_graph

TINY = DeepSeekV3Config.tiny()
CONFIGS = {
    "compressed queries": TINY,
    "plain queries": dataclasses.replace(TINY, q_lora_rank=None),
    "values as wide as queries": dataclasses.replace(TINY, v_head_dim=12),
}


def normalise(x, norm):
    return x / (x.pow(2).mean() + norm.eps).sqrt() * norm.weight


def turn(x, position, theta):
    """Rotary embedding of one vector: pairs as complex numbers, each multiplied by its own phase."""
    out = []
    for i in range(0, len(x), 2):
        z = complex(x[i], x[i + 1]) * cmath.exp(1j * position * theta ** (-i / len(x)))
        out += [z.real, z.imag]
    return torch.tensor(out, dtype=torch.float64)


def reference(attention, x):
    """[sequence, hidden] to the same shape."""
    c = attention.config
    queries: list[list[torch.Tensor]] = []
    keys: list[list[torch.Tensor]] = []
    values: list[list[torch.Tensor]] = []
    for position, token in enumerate(x):
        if c.q_lora_rank is None:
            q = attention.q.weight @ token
        else:
            q = attention.q_b.weight @ normalise(attention.q_a.weight @ token, attention.q_norm)
        narrow = attention.kv_a.weight @ token
        shared_key = turn(narrow[c.kv_lora_rank :], position, c.rope_theta)
        kv = attention.kv_b.weight @ normalise(narrow[: c.kv_lora_rank], attention.kv_norm)
        queries.append([])
        keys.append([])
        values.append([])
        for head_q, head_kv in zip(q.chunk(c.heads), kv.chunk(c.heads), strict=True):
            turned = turn(head_q[c.qk_nope_head_dim :], position, c.rope_theta)
            queries[-1].append(torch.cat((head_q[: c.qk_nope_head_dim], turned)))
            keys[-1].append(torch.cat((head_kv[: c.qk_nope_head_dim], shared_key)))
            values[-1].append(head_kv[c.qk_nope_head_dim :])
    out = []
    for position in range(len(x)):
        heads = []
        for head in range(c.heads):
            scores = [queries[position][head] @ keys[p][head] * c.qk_head_dim**-0.5 for p in range(position + 1)]
            weights = torch.stack(scores).softmax(0)
            heads.append(torch.stack([w * values[p][head] for p, w in enumerate(weights)]).sum(0))
        out.append(attention.out.weight @ torch.cat(heads))
    return torch.stack(out)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_equals_the_reference(config):
    torch.manual_seed(0)
    attention = LatentAttention(config, dtype=torch.float64)
    for part in attention.modules():
        if isinstance(part, nn.RMSNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
    x = torch.randn(2, 6, config.hidden, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([reference(attention, sequence) for sequence in x])
        torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_later_tokens_do_not_reach_earlier_ones():
    attention = LatentAttention(TINY)
    x = torch.randn(1, 6, TINY.hidden)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(attention(x)[:, :4], attention(changed)[:, :4])


def test_fused_attention_saves_no_scores():
    c = dataclasses.replace(TINY, hidden=16)
    graph = joint_graph.trace(LatentAttention(c), torch.randn(1, 33, 16)).graph
    shapes = [n.meta["val"].shape for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert not any(shape[-2:] == (33, 33) for shape in shapes)


def test_half_precision_stays_half_precision():
    attention = LatentAttention(TINY, dtype=torch.bfloat16)
    assert attention(torch.randn(1, 3, TINY.hidden, dtype=torch.bfloat16)).dtype == torch.bfloat16
