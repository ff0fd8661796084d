r"""Multi-head latent attention: keys and values come from one narrow compressed vector per token.

    x --> q_a, norm, q_b ---------------------> q = [q_nope | rope(q_rope)]
      \-> kv_a --> norm, kv_b --> k_nope, v     k = [k_nope | rope(k_rope), the same for all heads]
               \-> k_rope                       softmax(q k / sqrt(width)) v --> out

Sources: DeepSeek-V2 report (arXiv 2405.04434, section 2.1), DeepSeek-V3 report (arXiv 2412.19437, section 2.1.1).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe.models.config import DeepSeekV3Config
from annopipe.models.rotary import rotate, turns

__all__ = ["LatentAttention"]


class LatentAttention(nn.Module):
    """Causal multi-head latent attention with rotary positions 0, 1, 2, ... along the sequence.

    >>> attention = LatentAttention(DeepSeekV3Config.tiny())
    >>> attention(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        config: DeepSeekV3Config,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        c = config

        def linear(wide: int, out: int) -> nn.Linear:
            return nn.Linear(wide, out, bias=False, device=device, dtype=dtype)

        if c.q_lora_rank is None:
            self.q = linear(c.hidden, c.heads * c.qk_head_dim)
        else:
            self.q_a = linear(c.hidden, c.q_lora_rank)
            self.q_norm = nn.RMSNorm(c.q_lora_rank, eps=c.rms_eps, device=device, dtype=dtype)
            self.q_b = linear(c.q_lora_rank, c.heads * c.qk_head_dim)
        self.kv_a = linear(c.hidden, c.kv_lora_rank + c.qk_rope_head_dim)
        self.kv_norm = nn.RMSNorm(c.kv_lora_rank, eps=c.rms_eps, device=device, dtype=dtype)
        self.kv_b = linear(c.kv_lora_rank, c.heads * (c.qk_nope_head_dim + c.v_head_dim))
        self.out = linear(c.heads * c.v_head_dim, c.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same shape.

        Values are padded to the width of queries and keys and the result is cut back: with unequal widths PyTorch has
        no fused kernel and would save the scores, [batch, heads, sequence, sequence] twice per layer.
        """
        c = self.config
        batch, sequence, _ = x.shape
        q, k, v = self._heads(x)
        v = F.pad(v, (0, c.qk_head_dim - c.v_head_dim))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=c.qk_head_dim**-0.5)
        mixed = mixed[..., : c.v_head_dim].transpose(1, 2).reshape(batch, sequence, c.heads * c.v_head_dim)
        out: Tensor = self.out(mixed)
        return out

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [batch, heads, sequence, qk_head_dim] and values [batch, heads, sequence, v_head_dim]."""
        c = self.config
        batch, sequence, _ = x.shape
        cos, sin = turns(sequence, c.qk_rope_head_dim, c.rope_theta, x)
        q = self.q(x) if c.q_lora_rank is None else self.q_b(self.q_norm(self.q_a(x)))
        q = q.view(batch, sequence, c.heads, c.qk_head_dim).transpose(1, 2)
        q_nope, q_rope = q.split((c.qk_nope_head_dim, c.qk_rope_head_dim), dim=-1)
        compressed, k_rope = self.kv_a(x).split((c.kv_lora_rank, c.qk_rope_head_dim), dim=-1)
        kv = self.kv_b(self.kv_norm(compressed))
        kv = kv.view(batch, sequence, c.heads, c.qk_nope_head_dim + c.v_head_dim).transpose(1, 2)
        k_nope, v = kv.split((c.qk_nope_head_dim, c.v_head_dim), dim=-1)
        k_rope = rotate(k_rope.unsqueeze(1), cos, sin).expand(batch, c.heads, sequence, c.qk_rope_head_dim)
        return torch.cat((q_nope, rotate(q_rope, cos, sin)), -1), torch.cat((k_nope, k_rope), -1), v
