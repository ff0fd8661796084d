"""A Qwen3-MoE-style transformer, whole or as one pipeline stage: normalised queries and keys, many small experts.

    config = Qwen3MoEConfig.tiny()
    first, last = Qwen3MoEStage(config, [0], embed=True), Qwen3MoEStage(config, [1], head=True)
    logits = last(first(tokens))

Region paths: "embed", "block0/attention", "block0/moe/router" and so on, "head". Source: Qwen3 report (arXiv
2505.09388, section 2), without the global-batch balance loss.
"""

import dataclasses

from annopipe.models.grouped_query import GroupedQueryBlock, GroupedQueryConfig
from annopipe.models.stage import MoEStage

__all__ = ["Qwen3MoEConfig", "Qwen3MoEStage"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoEConfig(GroupedQueryConfig):
    """The sizes of one model; the fields are those of ``GroupedQueryConfig`` and ``MoEConfig``.

    >>> Qwen3MoEConfig.a3b_30b().top_k
    8
    """

    qk_norm: bool = True
    rope_theta: float = 1e6

    @classmethod
    def a3b_30b(cls) -> "Qwen3MoEConfig":
        """Qwen3-30B-A3B: 30.5 billion parameters, 3.3 billion active per token.

        Source of every field: ``config.json`` of Qwen/Qwen3-30B-A3B; table 2 of the report agrees.
        """
        return cls(
            vocabulary=151936,
            hidden=2048,
            layers=48,
            heads=32,
            kv_heads=4,
            head_dim=128,
            moe_intermediate=768,
            experts=128,
            top_k=8,
        )

    @classmethod
    def a22b_235b(cls) -> "Qwen3MoEConfig":
        """Qwen3-235B-A22B: 235 billion parameters, 22 billion active per token.

        Source of every field: ``config.json`` of Qwen/Qwen3-235B-A22B; table 2 of the report agrees.
        """
        return cls(
            vocabulary=151936,
            hidden=4096,
            layers=94,
            heads=64,
            kv_heads=4,
            head_dim=128,
            moe_intermediate=1536,
            experts=128,
            top_k=8,
        )

    @classmethod
    def tiny(cls) -> "Qwen3MoEConfig":
        """About 60,000 parameters, of no published model: runs and traces in a moment."""
        return cls(
            vocabulary=64,
            hidden=32,
            layers=2,
            heads=4,
            kv_heads=1,
            head_dim=16,
            moe_intermediate=16,
            experts=16,
            top_k=4,
            init_std=0.2,
        )


class Qwen3MoEStage(MoEStage):
    """Some blocks of a Qwen3-MoE-style model; arguments and errors as for ``annopipe.models.stage.MoEStage``.

    >>> import torch
    >>> stage = Qwen3MoEStage(Qwen3MoEConfig.tiny(), embed=True, head=True)
    >>> stage(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 64])
    """

    block_class = GroupedQueryBlock
