"""The mixture-of-experts layer as people write it today: sizes as Python lists, a loop over the experts.

A test input: it has the parameters of ``MoE`` and computes the same, but every size is a number in the graph, so that a
rank reads ``2 * ranks + local`` numbers per layer on the host instead of one.
"""

from typing import Any

import torch
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor

from annopipe import annotate
from annopipe.models.moe import MoE

__all__ = ["PlainMoE"]


class PlainMoE(MoE):
    """``MoE`` with plain ``.tolist()`` splits, ``all_to_all_single_autograd`` and one matrix product per expert.

    >>> from annopipe.models.config import DeepSeekV3Config
    >>> PlainMoE(DeepSeekV3Config.tiny())(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same shape."""
        h = x.reshape(-1, x.shape[-1])
        with annotate.region("router"):
            experts, weights = self.router(h)
            flat = experts.flatten()
            order = flat.argsort(stable=True)
            token = order // self.config.top_k
            counts = torch.zeros(self.config.experts, dtype=torch.int64, device=h.device)
            counts = counts.scatter_add(0, flat, torch.ones_like(flat))
            rows = h.index_select(0, token)
        if self.group is None:
            with annotate.region("experts"):
                rows = self._loop(rows, counts.tolist())
        else:
            rows = self._exchanged(rows, counts, self.group)
        with annotate.region("unpermute"):
            rows = rows * weights.flatten()[order].to(rows.dtype).unsqueeze(1)
            out = torch.zeros_like(h).index_add(0, token, rows)
        if self.shared is not None:
            with annotate.region("shared"):
                beside = self.shared(h)
            out = out + beside
        return out.view_as(x)

    def _exchanged(self, rows: Tensor, counts: Tensor, group: Any) -> Tensor:
        with annotate.comm("dispatch"):
            arriving = functional.all_to_all_single(counts, None, None, group)
            send = counts.view(self.ranks, self.local).sum(1).tolist()
            recv = arriving.view(self.ranks, self.local).sum(1).tolist()
            received = functional.all_to_all_single_autograd(rows, recv, send, group)
        with annotate.region("experts"):
            expert = torch.arange(self.local, device=rows.device).repeat(self.ranks)
            expert = torch.repeat_interleave(expert, arriving, output_size=received.shape[0])
            order = expert.argsort(stable=True)
            computed = self._loop(received[order], arriving.view(self.ranks, self.local).sum(0).tolist())
            computed = computed[order.argsort()]
        with annotate.comm("combine"):
            return functional.all_to_all_single_autograd(computed, send, recv, group)

    def _loop(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows sorted by expert, [rows, hidden], and how many each expert has, to the same shape."""
        parts = []
        for expert, part in enumerate(rows.split(counts)):
            gate, up = (part @ self.experts.gate_up[expert]).chunk(2, dim=-1)
            parts.append((F.silu(gate) * up) @ self.experts.down[expert])
        return torch.cat(parts)
