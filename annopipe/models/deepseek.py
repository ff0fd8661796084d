"""A DeepSeek-V3-style transformer, whole or as one pipeline stage, tagged region by region.

    config = DeepSeekV3Config.tiny()
    first = DeepSeekV3Stage(config, range(0, 1), embed=True)
    last = DeepSeekV3Stage(config, range(1, 2), head=True)
    logits = last(first(tokens))                       # equal to DeepSeekV3Stage(config, embed=True, head=True)(tokens)

Region paths: "embed", "block0/attention", "block0/mlp" or "block0/moe/router" and so on, "head".

Source: DeepSeek-V3 report (arXiv 2412.19437, section 2.1), without multi-token prediction and auxiliary balance loss.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from annopipe.models.attention import LatentAttention
from annopipe.models.block import TransformerBlock
from annopipe.models.config import DeepSeekV3Config
from annopipe.models.exchange import Group
from annopipe.models.layers import SwiGLU
from annopipe.models.moe import MoE
from annopipe.models.stage import MoEStage

__all__ = ["Block", "DeepSeekV3Stage", "tiny_stage"]


class Block(TransformerBlock):
    """One transformer block: latent attention, then experts (or a dense feed-forward in the first blocks).

    Args:
        config: the sizes of the whole model.
        layer: the block's number in the whole model, which is also its region's name.
        group: the expert-parallel process group (or its name), None to hold all experts.
        moe: the class of the expert layer.

    >>> Block(DeepSeekV3Config.tiny(), layer=0)(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        config: DeepSeekV3Config,
        layer: int,
        group: Group | None = None,
        moe: type[MoE] = MoE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        experts = config.has_experts(layer)
        feed: nn.Module
        if experts:
            feed = moe(config, group, device, dtype)
        else:
            feed = SwiGLU(config.hidden, config.intermediate, device, dtype)
        super().__init__(
            layer,
            nn.RMSNorm(config.hidden, eps=config.rms_eps, device=device, dtype=dtype),
            LatentAttention(config, device, dtype),
            nn.RMSNorm(config.hidden, eps=config.rms_eps, device=device, dtype=dtype),
            feed,
            "moe" if experts else "mlp",
        )


class DeepSeekV3Stage(MoEStage):
    """Some blocks of a DeepSeek-V3-style model; arguments and errors as for ``MoEStage``.

    >>> stage = DeepSeekV3Stage(DeepSeekV3Config.tiny(), embed=True, head=True)
    >>> stage(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 64])
    """

    block_class = Block


def tiny_stage() -> tuple[DeepSeekV3Stage, tuple[Tensor, ...]]:
    """A tiny stage with an example input, for ``annopipe inspect annopipe.models:tiny_stage``.

    Its experts are spread over all ranks where torch.distributed is initialised.
    """
    config = DeepSeekV3Config.tiny()
    group = dist.group.WORLD if dist.is_initialized() else None
    return DeepSeekV3Stage(config, group=group), (torch.zeros(2, 8, config.hidden, requires_grad=True),)
