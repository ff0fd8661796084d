"""The router: which experts a token visits, and with which weights.

Sources: DeepSeek-V3 report (arXiv 2412.19437), sections 2.1.2 (sigmoid scores, selection bias) and DeepSeek-V2 report
(arXiv 2405.04434), section 2.2.2 (a token's experts come from a few groups of experts).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe.models.config import DeepSeekV3Config

__all__ = ["Route", "Router"]


class Route(NamedTuple):
    """The experts of each token, best first.

    experts: int64 [tokens, top_k].  weights: [tokens, top_k], float32 or wider, differentiable.
    """

    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Scores every expert for every token, and keeps the best ``top_k`` within the best groups.

    The buffer ``selection_bias`` ([experts], zero at first) is added to the scores for the choice alone: a training
    loop that balances load changes it between steps, forward never does. Among equal scores the lower expert wins, on
    every device, so that identical tokens go the same way.

    >>> router = Router(DeepSeekV3Config.tiny())
    >>> route = router(torch.ones(5, 32))
    >>> route.experts.shape, route.weights.shape
    (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    selection_bias: Tensor

    def __init__(
        self,
        config: DeepSeekV3Config,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=config.init_std)
        self.register_buffer("selection_bias", torch.zeros(config.experts, device=device))

    def forward(self, h: Tensor) -> Route:
        """Route tokens ``h``, [tokens, hidden]."""
        c = self.config
        wide = torch.promote_types(h.dtype, torch.float32)
        logits = F.linear(h.to(wide), self.weight.to(wide))
        scores = logits.sigmoid() if c.scoring == "sigmoid" else logits.softmax(-1)
        experts = self._choose(scores.detach() + self.selection_bias)
        weights = scores.gather(1, experts)
        if c.norm_topk:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Route(experts, weights * c.routed_scaling)

    def _choose(self, scores: Tensor) -> Tensor:
        """The experts with the highest biased scores: [tokens, experts] to int64 [tokens, top_k]."""
        c = self.config
        if c.groups_kept < c.expert_groups:
            groups = scores.unflatten(1, (c.expert_groups, c.experts_per_group))
            strength = groups.topk(min(2, c.experts_per_group), dim=-1).values.sum(-1)
            kept = _highest(strength, c.groups_kept)
            closed = torch.ones_like(strength, dtype=torch.bool).scatter(1, kept, False)
            scores = groups.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)
        return _highest(scores, c.top_k)


def _highest(scores: Tensor, k: int) -> Tensor:
    """Positions of the ``k`` highest values of each row, highest first, lower position first among equals.

    ``torch.topk`` leaves the order among equals open, and it differs between devices.
    """
    return scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
