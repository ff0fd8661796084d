"""The router: which experts a token visits, and with which weights.

Sources: DeepSeek-V3 report (arXiv 2412.19437), sections 2.1.2 (sigmoid scores, selection bias) and DeepSeek-V2 report
(arXiv 2405.04434), section 2.2.2 (a token's experts come from a few groups of experts).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe.models.moe_config import MoEConfig
from annopipe.models.routing import deal, draw

__all__ = ["Route", "Router"]


class Route(NamedTuple):
    """The experts of each token, best first.

    experts: int64 [tokens, top_k].  weights: [tokens, top_k], float32 or wider, differentiable.
    """

    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Scores every expert for every token, and keeps the best ``top_k`` within the best groups.

    With another routing than "learned" (``config.routing``) the scores only weigh the experts, and the choice is made
    as ``annopipe/models/routing.py`` says, whatever the groups; it reads buffers that no checkpoint holds.

    The buffer ``selection_bias`` ([experts], zero at first) is added to the scores for the choice alone: a training
    loop that balances load changes it between steps, forward never does. Among equal scores the lower expert wins, on
    every device, so that identical tokens go the same way.

    Args:
        rank: which part of the batch of its expert-parallel group this router sees.

    >>> from annopipe.models import DeepSeekV3Config
    >>> router = Router(DeepSeekV3Config.tiny())
    >>> route = router(torch.ones(5, 32))
    >>> route.experts.shape, route.weights.shape
    (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    selection_bias: Tensor
    order: Tensor
    shares: Tensor
    salt: Tensor

    def __init__(
        self,
        config: MoEConfig,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.rank = rank
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=config.init_std)
        self.register_buffer("selection_bias", torch.zeros(config.experts, device=device))
        for name, buffer in self._routing_buffers("").items():
            self.register_buffer(name, buffer.to(device), persistent=False)

    @torch.no_grad()
    def reset_buffers(self, name: str) -> None:
        """Give every buffer its first value again; ``name`` is the router's, by which routers differ."""
        self.selection_bias.zero_()
        for buffer, value in self._routing_buffers(name).items():
            self.get_buffer(buffer).copy_(value)

    def forward(self, h: Tensor) -> Route:
        """Route tokens ``h``, [tokens, hidden]."""
        c = self.config
        wide = torch.promote_types(h.dtype, torch.float32)
        logits = F.linear(h.to(wide), self.weight.to(wide))
        scores = logits.sigmoid() if c.scoring == "sigmoid" else logits.softmax(-1)
        experts = self._choose(h.detach(), scores.detach())
        weights = scores.gather(1, experts)
        if c.norm_topk:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Route(experts, weights * c.routed_scaling)

    def _choose(self, h: Tensor, scores: Tensor) -> Tensor:
        """The experts of tokens [tokens, hidden] with scores [tokens, experts]: int64 [tokens, top_k]."""
        c = self.config
        first = self.rank * h.shape[0]
        if c.routing.kind == "balanced":
            return deal(self.order, h.shape[0], c.top_k, first)
        if c.routing.kind == "skewed":
            return _highest(draw(h, self.shares, self.salt, first), c.top_k)
        scores = scores + self.selection_bias
        if c.groups_kept < c.expert_groups:
            groups = scores.unflatten(1, (c.expert_groups, c.experts_per_group))
            strength = groups.topk(min(2, c.experts_per_group), dim=-1).values.sum(-1)
            kept = _highest(strength, c.groups_kept)
            closed = torch.ones_like(strength, dtype=torch.bool).scatter(1, kept, False)
            scores = groups.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)
        return _highest(scores, c.top_k)

    def _routing_buffers(self, name: str) -> dict[str, Tensor]:
        """What a routing that is not learned reads, for the router called ``name``."""
        routing, experts = self.config.routing, self.config.experts
        if routing.kind == "learned":
            return {}
        order = routing.order(experts, name)
        if routing.kind == "balanced":
            return {"order": order}
        shares = torch.zeros(experts, dtype=torch.float64)
        shares[order] = torch.tensor(routing.shares(experts), dtype=torch.float64)
        return {"shares": shares, "salt": torch.tensor(routing.salt(name))}


def _highest(scores: Tensor, k: int) -> Tensor:
    """Positions of the ``k`` highest values of each row, highest first, lower position first among equals.

    ``torch.topk`` leaves the order among equals open, and it differs between devices.
    """
    return scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
