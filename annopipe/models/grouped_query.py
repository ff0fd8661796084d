r"""Grouped-query attention: several heads of queries share one head of keys and values.

    x --> q --> [norm] --> rope --\
      \-> k --> [norm] --> rope ----> softmax(q k / sqrt(head_dim)) v --> out
       \-> v ---------------------/

Sources: grouped queries arXiv 2305.13245; normalised queries and keys as in Qwen3 (arXiv 2505.09388, section 2).
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe.models.block import TransformerBlock
from annopipe.models.exchange import Group
from annopipe.models.moe import MoE
from annopipe.models.moe_config import MoEConfig
from annopipe.models.rotary import rotate_halves, turns
from annopipe.models.sizes import check_integers, check_relations

__all__ = ["GroupedQueryAttention", "GroupedQueryBlock", "GroupedQueryConfig"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryConfig(MoEConfig):
    """The sizes of a model whose blocks are grouped-query attention and experts: those of ``MoEConfig``, and these.

    kv_heads: heads of keys and values; a divisor of ``heads``.
    head_dim: width of a query, key or value per head.
    qk_norm: whether each head's queries and keys are normalised (RMS) before they are turned.
    """

    kv_heads: int
    head_dim: int
    qk_norm: bool = False

    def __post_init__(self) -> None:
        self.check_experts()
        check_integers(self, 1, ("kv_heads", "head_dim"))
        relations = [
            (self.heads % self.kv_heads == 0, f"{self.heads} heads cannot share {self.kv_heads} kv_heads equally"),
            (
                self.head_dim % 2 == 0,
                f"head_dim is {self.head_dim}; rotary embedding turns pairs, so it must be even",
            ),
        ]
        check_relations(self, relations)


class GroupedQueryAttention(nn.Module):
    """Causal grouped-query attention with rotary positions 0, 1, 2, ... along the sequence.

    >>> from annopipe.models import MixtralConfig
    >>> GroupedQueryAttention(MixtralConfig.tiny())(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        config: GroupedQueryConfig,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        c = config

        def linear(wide: int, out: int) -> nn.Linear:
            return nn.Linear(wide, out, bias=False, device=device, dtype=dtype)

        self.q = linear(c.hidden, c.heads * c.head_dim)
        self.k = linear(c.hidden, c.kv_heads * c.head_dim)
        self.v = linear(c.hidden, c.kv_heads * c.head_dim)
        self.q_norm = self.k_norm = None
        if c.qk_norm:
            self.q_norm = nn.RMSNorm(c.head_dim, eps=c.rms_eps, device=device, dtype=dtype)
            self.k_norm = nn.RMSNorm(c.head_dim, eps=c.rms_eps, device=device, dtype=dtype)
        self.out = linear(c.heads * c.head_dim, c.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same shape."""
        c = self.config
        cos, sin = turns(x.shape[1], c.head_dim, c.rope_theta, x)
        q = rotate_halves(self._heads(self.q, self.q_norm, x), cos, sin)
        k = rotate_halves(self._heads(self.k, self.k_norm, x), cos, sin)
        v = self._heads(self.v, None, x)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c.kv_heads < c.heads)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, linear: nn.Linear, norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to [batch, heads, sequence, head_dim]."""
        heads = linear(x).unflatten(-1, (-1, self.config.head_dim))
        return (heads if norm is None else norm(heads)).transpose(1, 2)


class GroupedQueryBlock(TransformerBlock):
    """One block of a Mixtral- or Qwen3-MoE-style model: grouped-query attention, then experts.

    Arguments are those of ``annopipe.models.Block``.

    >>> from annopipe.models import Qwen3MoEConfig
    >>> GroupedQueryBlock(Qwen3MoEConfig.tiny(), layer=0)(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        config: GroupedQueryConfig,
        layer: int,
        group: Group | None = None,
        moe: type[MoE] = MoE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            layer,
            nn.RMSNorm(config.hidden, eps=config.rms_eps, device=device, dtype=dtype),
            GroupedQueryAttention(config, device, dtype),
            nn.RMSNorm(config.hidden, eps=config.rms_eps, device=device, dtype=dtype),
            moe(config, group, device, dtype),
            "moe",
        )
