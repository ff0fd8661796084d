"""A Mixtral-style transformer, whole or as one pipeline stage: grouped-query attention and a few wide experts.

    config = MixtralConfig.tiny()
    first, last = MixtralStage(config, [0], embed=True), MixtralStage(config, [1], head=True)
    logits = last(first(tokens))

Region paths: "embed", "block0/attention", "block0/moe/router" and so on, "head". A token's weights are the softmax over
the logits of its experts, which ``norm_topk`` gives. Source: Mixtral report (arXiv 2401.04088, section 2), without
sliding-window attention (as published from 8x7B on) and auxiliary balance loss.
"""

import dataclasses

from annopipe.models.grouped_query import GroupedQueryBlock, GroupedQueryConfig
from annopipe.models.stage import MoEStage

__all__ = ["MixtralConfig", "MixtralStage"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(GroupedQueryConfig):
    """The sizes of one model; the fields are those of ``GroupedQueryConfig`` and ``MoEConfig``.

    >>> MixtralConfig.m8x7b().experts
    8
    """

    rope_theta: float = 1e6
    rms_eps: float = 1e-5

    @classmethod
    def m8x7b(cls) -> "MixtralConfig":
        """Mixtral 8x7B: 46.7 billion parameters, 12.9 billion active per token.

        Source of every field: ``config.json`` of mistralai/Mixtral-8x7B-v0.1; table 1 of the report has the same.
        """
        return cls(
            vocabulary=32000,
            hidden=4096,
            layers=32,
            heads=32,
            kv_heads=8,
            head_dim=128,
            moe_intermediate=14336,
            experts=8,
            top_k=2,
        )

    @classmethod
    def m8x22b(cls) -> "MixtralConfig":
        """Mixtral 8x22B: 141 billion parameters, 39 billion active per token.

        Source of every field: ``config.json`` of mistralai/Mixtral-8x22B-v0.1.
        """
        return cls(
            vocabulary=32000,
            hidden=6144,
            layers=56,
            heads=48,
            kv_heads=8,
            head_dim=128,
            moe_intermediate=16384,
            experts=8,
            top_k=2,
        )

    @classmethod
    def tiny(cls) -> "MixtralConfig":
        """About 60,000 parameters, of no published model: runs and traces in a moment."""
        return cls(
            vocabulary=64,
            hidden=32,
            layers=2,
            heads=4,
            kv_heads=2,
            head_dim=8,
            moe_intermediate=32,
            experts=8,
            top_k=2,
            init_std=0.2,
        )


class MixtralStage(MoEStage):
    """Some blocks of a Mixtral-style model; arguments and errors as for ``annopipe.models.stage.MoEStage``.

    >>> import torch
    >>> stage = MixtralStage(MixtralConfig.tiny(), embed=True, head=True)
    >>> stage(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 64])
    """

    block_class = GroupedQueryBlock
