"""The sizes of a mixture-of-experts transformer that all of them have in common; each model's config adds its own."""

import dataclasses
from typing import Literal, get_args

from annopipe.errors import GraphError
from annopipe.models.routing import Routing
from annopipe.models.sizes import check_integers, check_positive, check_relations

__all__ = ["MoEConfig", "NanoBatched", "Scoring"]

NanoBatched = Literal["moe", "stage"]
Scoring = Literal["sigmoid", "softmax"]

_AT_LEAST_ONE = (
    "vocabulary",
    "hidden",
    "layers",
    "heads",
    "moe_intermediate",
    "experts",
    "top_k",
    "expert_groups",
    "groups_kept",
    "nano_batches",
)
_LEARNED = Routing()
_POSITIVE = ("routed_scaling", "rope_theta", "rms_eps", "init_std")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Sizes of the residual stream and of the expert layers. Widths are numbers of values per token.

    vocabulary: number of different tokens.
    hidden: width of the residual stream.
    layers: number of blocks.
    heads: attention heads.
    moe_intermediate: inner width of one expert.
    experts: routed experts.  top_k: how many of them a token visits.
    shared_experts: experts that every token visits, run as one feed-forward of inner width
        ``shared_experts * moe_intermediate``; may be 0.
    expert_groups, groups_kept: the experts form equal groups, and a token's experts come from the best of these groups.
    scoring: how router logits become scores.  norm_topk: whether the weights of a token's experts are made to add to 1;
        with "softmax" this is the softmax over the logits of the chosen experts.
    routed_scaling: factor on these weights.
    nano_batches: into how many lanes a stage splits what it gets; a policy hides the messages of one behind the others.
    nano_batched: "moe": every expert layer splits its tokens; "stage": the stage splits its input along the batch, and
        each part goes through all blocks on its own, attention too. An input with fewer rows has as many parts as rows.
    expert_sms: how many multiprocessors of a GPU the experts' matrix products may occupy, so that the kernels of an
        exchange get the others; 0: all of them.
    routing: whether the router's scores choose (the default), or tokens are spread evenly or skewed.
    rope_theta: base of the rotary periods, in tokens.  rms_eps: added to the mean square in normalisations.
    init_std: standard deviation of freshly initialised weights.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    moe_intermediate: int
    experts: int
    top_k: int
    shared_experts: int = 0
    expert_groups: int = 1
    groups_kept: int = 1
    scoring: Scoring = "softmax"
    norm_topk: bool = True
    routed_scaling: float = 1.0
    routing: Routing = _LEARNED
    expert_sms: int = 0
    nano_batches: int = 1
    nano_batched: NanoBatched = "moe"
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6
    init_std: float = 0.02

    def __post_init__(self) -> None:
        self.check_experts()

    @property
    def experts_per_group(self) -> int:
        """Routed experts in one group."""
        return self.experts // self.expert_groups

    def has_experts(self, layer: int) -> bool:  # noqa: ARG002 - a model with dense blocks looks at it
        """Whether block ``layer`` (counted from 0) has experts rather than a dense feed-forward."""
        return True

    def check_experts(self) -> None:
        """Refuse sizes that cannot be; a subclass calls it from ``__post_init__`` and checks its own.

        Raises:
            GraphError: naming the field.
        """
        check_integers(self, 1, _AT_LEAST_ONE)
        check_integers(self, 0, ("shared_experts", "expert_sms"))
        check_positive(self, _POSITIVE)
        if not isinstance(self.routing, Routing):
            raise GraphError(f"{type(self).__name__}: routing is {self.routing!r}; give a Routing")
        size, kept, idle = self.experts_per_group, self.groups_kept, self.routing.idle
        relations = [
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
                self.top_k <= self.experts - idle,
                f"top_k is {self.top_k}, but with {idle} of {self.experts} experts idle (routing) too few are left",
            ),
            (
                self.nano_batched in get_args(NanoBatched),
                f"nano_batched is {self.nano_batched!r}; it must be one of {', '.join(get_args(NanoBatched))}",
            ),
            (
                self.scoring in get_args(Scoring),
                f"scoring is {self.scoring!r}; it must be one of {', '.join(get_args(Scoring))}",
            ),
        ]
        check_relations(self, relations)
