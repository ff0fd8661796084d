"""The routed experts that one rank holds, computed for rows that are sorted by expert.

Source: DeepSeek-V3 report (arXiv 2412.19437, section 2.1.2); one expert is a narrow gated feed-forward.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe.kernels.grouped_mm import grouped_mm
from annopipe.models.moe_config import MoEConfig

__all__ = ["Experts"]


class Experts(nn.Module):
    """Experts ``first`` to ``first + local - 1`` of the model.

    gate_up: [local, hidden, 2 * moe_intermediate], the gate's columns first.  down: [local, moe_intermediate, hidden].

    >>> from annopipe.models import DeepSeekV3Config
    >>> experts = Experts(DeepSeekV3Config.tiny(), first=4, local=2)
    >>> experts(torch.ones(5, 32), torch.tensor([5, 0])).shape
    torch.Size([5, 32])
    """

    def __init__(
        self,
        config: MoEConfig,
        first: int,
        local: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.first = first
        self.sms = config.expert_sms
        inner = config.moe_intermediate
        self.gate_up = nn.Parameter(torch.empty(local, config.hidden, 2 * inner, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(local, inner, config.hidden, device=device, dtype=dtype))
        for weight in (self.gate_up, self.down):
            nn.init.normal_(weight, std=config.init_std)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, [rows, hidden], to the same shape; counts: int64 [local], rows of each expert."""
        gate, up = grouped_mm(rows, self.gate_up, counts, self.sms).chunk(2, dim=-1)
        return grouped_mm(F.silu(gate) * up, self.down, counts, self.sms)
