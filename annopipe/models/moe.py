r"""The dropless mixture-of-experts layer with expert parallelism: every token reaches every expert it is routed to.

    router --> sort rows by expert --> dispatch --> experts --> combine --> unpermute --> + --> out
       \----------------------------- shared experts ----------------------------------/

With a process group of R ranks, each rank holds 1/R of the experts; ``dispatch`` and ``combine`` are all-to-alls. Per
layer: one host read (how many rows arrive), three launches in the forward (counts, dispatch, combine) and two in the
backward; as many for every nano-batch (``config.nano_batches``), while one of which computes, another's exchange is on
its way. The shared experts read the layer's input only, so they can run beside an exchange, too.

Source: DeepSeek-V3 report (arXiv 2412.19437, sections 2.1.2 and 3.2).
"""

import torch
from torch import Tensor, nn

from annopipe import annotate
from annopipe.errors import GraphError
from annopipe.models.exchange import Group, exchange, exchange_counts, group_name, group_place, peer_sizes
from annopipe.models.experts import Experts
from annopipe.models.layers import SwiGLU
from annopipe.models.moe_config import MoEConfig
from annopipe.models.nano_batching import split_forward
from annopipe.models.permute import by_expert, permute, regroup, unpermute
from annopipe.models.router import Router

__all__ = ["MoE"]


class MoE(nn.Module):
    """Routed and shared experts; the routed ones spread over ``group``, or all here when it is None.

    Regions: router, dispatch, experts, combine, shared, unpermute.

    Raises:
        GraphError: the experts cannot be shared out equally, or torch.distributed is not initialised.

    >>> from annopipe.models import DeepSeekV3Config
    >>> MoE(DeepSeekV3Config.tiny())(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        config: MoEConfig,
        group: Group | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.group = None if group is None else group_name(group)
        rank, self.ranks = (0, 1) if group is None else group_place(group)
        if config.experts % self.ranks:
            raise GraphError(f"MoE: {config.experts} experts cannot be shared equally by {self.ranks} ranks")
        self.local = config.experts // self.ranks
        self.router = Router(config, device, dtype, rank)
        self.experts = Experts(config, rank * self.local, self.local, device, dtype)
        self.shared = None
        if config.shared_experts:
            self.shared = SwiGLU(config.hidden, config.shared_experts * config.moe_intermediate, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same shape."""
        h = x.reshape(-1, self.config.hidden)
        parts = self.config.nano_batches if self.config.nano_batched == "moe" else 1
        return split_forward(self._tokens, h, parts).view_as(x)

    def _tokens(self, h: Tensor) -> Tensor:
        """[tokens, hidden] to the same shape."""
        c = self.config
        with annotate.region("router"):
            route = self.router(h)
            order, counts = by_expert(route.experts.flatten(), c.experts)
            rows = permute(h, order, c.top_k)
        if self.group is None:
            with annotate.region("experts"):
                rows = self.experts(rows, counts)
        else:
            rows = self._remote_experts(rows, counts, self.group)
        shared = None
        if self.shared is not None:
            with annotate.region("shared"):
                shared = self.shared(h)
        with annotate.region("unpermute"):
            out = unpermute(rows, order, route.weights)
            return out if shared is None else out + shared

    def _remote_experts(self, rows: Tensor, counts: Tensor, group: Group) -> Tensor:
        """Send rows to the ranks of their experts and back: [slots, hidden] sorted by expert, to the same."""
        with annotate.comm("dispatch"):
            arriving = exchange_counts(counts, group)
            sizes = peer_sizes(counts, arriving, self.ranks)
            received = exchange(rows, sizes.send, sizes.recv, sizes.total, group)
        with annotate.region("experts"):
            by_rank = arriving.view(self.ranks, self.local)
            order = regroup(by_rank, sizes.total)
            computed = self.experts(permute(received, order), by_rank.sum(0))
            computed = unpermute(computed, order)
        with annotate.comm("combine"):
            return exchange(computed, sizes.recv, sizes.send, rows.shape[0], group)
