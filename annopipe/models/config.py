"""The sizes of DeepSeek-V3-style models: the published ones, and small ones for tests and demonstrations.

    config = DeepSeekV3Config.v3_671b()
    config = dataclasses.replace(DeepSeekV3Config.tiny(), experts=16)

Sources: DeepSeek-V3 technical report (arXiv 2412.19437, sections 2.1 and 4.2) with the ``config.json`` published beside
the weights; DeepSeek-V2 report (arXiv 2405.04434, appendix on V2-Lite) for the 16B sizes, which torchtitan trains under
the name deepseek_v3 16B (``torchtitan/models/deepseek_v3/__init__.py``). Context extension (YaRN) is left out.
"""

import dataclasses

from annopipe.models.moe_config import MoEConfig, Scoring
from annopipe.models.sizes import check_integers, check_relations

__all__ = ["DeepSeekV3Config"]

_AT_LEAST_ONE = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekV3Config(MoEConfig):
    """The sizes of one model: those of ``MoEConfig``, and these.

    dense_layers: how many of the first blocks have a plain feed-forward instead of experts.
    q_lora_rank: width of the compressed queries, None: not compressed.
    kv_lora_rank: width of the compressed keys and values.
    qk_nope_head_dim, qk_rope_head_dim: width of a query or key per head without, and with, rotary position embedding.
    v_head_dim: width of a value per head, at most the two together.
    intermediate: inner width of a dense feed-forward.

    >>> DeepSeekV3Config.v3_671b().qk_head_dim
    192
    >>> dataclasses.replace(DeepSeekV3Config.tiny(), top_k=0)
    Traceback (most recent call last):
    annopipe.errors.GraphError: DeepSeekV3Config: top_k is 0; it must be an integer of at least 1
    """

    dense_layers: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate: int
    scoring: Scoring = "sigmoid"
    init_std: float = 0.006

    def __post_init__(self) -> None:
        self.check_experts()
        check_integers(self, 1, _AT_LEAST_ONE)
        check_integers(self, 0, ("dense_layers",))
        if self.q_lora_rank is not None:
            check_integers(self, 1, ("q_lora_rank",))
        relations = [
            (
                self.dense_layers <= self.layers,
                f"dense_layers is {self.dense_layers}, more than the {self.layers} layers",
            ),
            (
                self.qk_rope_head_dim % 2 == 0,
                f"qk_rope_head_dim is {self.qk_rope_head_dim}; rotary embedding turns pairs, so it must be even",
            ),
            (
                self.v_head_dim <= self.qk_head_dim,
                f"v_head_dim is {self.v_head_dim}; values are padded to the width of queries, {self.qk_head_dim}",
            ),
        ]
        check_relations(self, relations)

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key per head, both parts together."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def has_experts(self, layer: int) -> bool:
        """Whether block ``layer`` (counted from 0) has experts rather than a dense feed-forward."""
        return layer >= self.dense_layers

    @classmethod
    def v3_671b(cls) -> "DeepSeekV3Config":
        """DeepSeek-V3 without multi-token prediction: 671 billion parameters, 37 billion active per token."""
        return cls(
            vocabulary=129280,
            hidden=7168,
            layers=61,
            dense_layers=3,
            heads=128,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            intermediate=18432,
            moe_intermediate=2048,
            experts=256,
            shared_experts=1,
            top_k=8,
            expert_groups=8,
            groups_kept=4,
            routed_scaling=2.5,
        )

    @classmethod
    def v3_16b(cls) -> "DeepSeekV3Config":
        """The 16-billion-parameter shape (DeepSeek-V2-Lite), 2.4 billion active per token."""
        return cls(
            vocabulary=102400,
            hidden=2048,
            layers=27,
            dense_layers=1,
            heads=16,
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            intermediate=10944,
            moe_intermediate=1408,
            experts=64,
            shared_experts=2,
            top_k=6,
            scoring="softmax",
            norm_topk=False,
        )

    @classmethod
    def small(cls) -> "DeepSeekV3Config":
        """About 7 million parameters: enough computation to time on a processor core."""
        return cls(
            vocabulary=1024,
            hidden=256,
            layers=4,
            dense_layers=1,
            heads=4,
            q_lora_rank=128,
            kv_lora_rank=64,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
            intermediate=1024,
            moe_intermediate=256,
            experts=8,
            shared_experts=1,
            top_k=2,
            expert_groups=4,
            groups_kept=2,
            routed_scaling=2.5,
            init_std=0.06,
        )

    @classmethod
    def tiny(cls) -> "DeepSeekV3Config":
        """About 40,000 parameters: runs and traces in a moment, with every feature in use."""
        return cls(
            vocabulary=64,
            hidden=32,
            layers=2,
            dense_layers=0,
            heads=2,
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
            intermediate=64,
            moe_intermediate=16,
            experts=8,
            shared_experts=1,
            top_k=2,
            expert_groups=4,
            groups_kept=2,
            routed_scaling=2.5,
            init_std=0.2,
        )
