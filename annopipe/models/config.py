"""The sizes of DeepSeek-V3-style models: the published ones, and small ones for tests and demonstrations.

    config = DeepSeekV3Config.v3_671b()
    config = dataclasses.replace(DeepSeekV3Config.tiny(), experts=16)

Sources: DeepSeek-V3 technical report (arXiv 2412.19437, sections 2.1 and 4.2) with the ``config.json`` published beside
the weights; DeepSeek-V2 report (arXiv 2405.04434, appendix on V2-Lite) for the 16B sizes, which torchtitan trains under
the name deepseek_v3 16B (``torchtitan/models/deepseek_v3/__init__.py``). Context extension (YaRN) is left out.
"""

import dataclasses
from typing import Literal, get_args

from annopipe.errors import GraphError

__all__ = ["DeepSeekV3Config", "Scoring"]

Scoring = Literal["sigmoid", "softmax"]

_AT_LEAST_ONE = (
    "vocabulary",
    "hidden",
    "layers",
    "heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "intermediate",
    "moe_intermediate",
    "experts",
    "top_k",
    "expert_groups",
    "groups_kept",
)
_AT_LEAST_ZERO = ("dense_layers", "shared_experts")
_POSITIVE = ("routed_scaling", "rope_theta", "rms_eps", "init_std")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekV3Config:
    """The sizes of one model. Widths are numbers of values per token.

    vocabulary: number of different tokens.
    hidden: width of the residual stream.
    layers: number of blocks.  dense_layers: how many of the first ones have a plain feed-forward instead of experts.
    heads: attention heads.
    q_lora_rank: width of the compressed queries, None: not compressed.
    kv_lora_rank: width of the compressed keys and values.
    qk_nope_head_dim, qk_rope_head_dim: width of a query or key per head without, and with, rotary position embedding.
    v_head_dim: width of a value per head, at most the two together.
    intermediate, moe_intermediate: inner width of a dense feed-forward, and of one expert.
    experts: routed experts.  top_k: how many of them a token visits.
    shared_experts: experts that every token visits, run as one feed-forward of inner width
        ``shared_experts * moe_intermediate``; may be 0.
    expert_groups, groups_kept: the experts form equal groups, and a token's experts come from the best of these groups.
    scoring: how router logits become scores.  norm_topk: whether the weights of a token's experts are made to add to 1.
    routed_scaling: factor on these weights.
    rope_theta: base of the rotary periods, in tokens.  rms_eps: added to the mean square in normalisations.
    init_std: standard deviation of freshly initialised weights.

    >>> DeepSeekV3Config.v3_671b().qk_head_dim
    192
    >>> dataclasses.replace(DeepSeekV3Config.tiny(), top_k=0)
    Traceback (most recent call last):
    annopipe.errors.GraphError: DeepSeekV3Config: top_k is 0; it must be an integer of at least 1
    """

    vocabulary: int
    hidden: int
    layers: int
    dense_layers: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate: int
    moe_intermediate: int
    experts: int
    shared_experts: int
    top_k: int
    expert_groups: int = 1
    groups_kept: int = 1
    scoring: Scoring = "sigmoid"
    norm_topk: bool = True
    routed_scaling: float = 1.0
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6
    init_std: float = 0.006

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            self._check_integer(name, 1)
        for name in _AT_LEAST_ZERO:
            self._check_integer(name, 0)
        if self.q_lora_rank is not None:
            self._check_integer("q_lora_rank", 1)
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise GraphError(f"DeepSeekV3Config: {name} is {value!r}; it must be a positive number")
        for holds, message in self._relations():
            if not holds:
                raise GraphError(f"DeepSeekV3Config: {message}")

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key per head, both parts together."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def experts_per_group(self) -> int:
        """Routed experts in one group."""
        return self.experts // self.expert_groups

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

    def _check_integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise GraphError(f"DeepSeekV3Config: {name} is {value!r}; it must be an integer of at least {least}")

    def _relations(self) -> list[tuple[bool, str]]:
        """What must hold between fields, each with what to say when it does not."""
        size, kept = self.experts_per_group, self.groups_kept
        return [
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
            (
                self.experts % self.expert_groups == 0,
                f"{self.experts} experts do not form {self.expert_groups} equal groups (expert_groups)",
            ),
            (kept <= self.expert_groups, f"groups_kept is {kept}, more than the {self.expert_groups} groups"),
            (
                self.top_k <= kept * size,
                f"top_k is {self.top_k}, but {kept} groups of {size} have only {kept * size} experts (groups_kept)",
            ),
            (
                self.scoring in get_args(Scoring),
                f"scoring is {self.scoring!r}; it must be one of {', '.join(get_args(Scoring))}",
            ),
        ]
