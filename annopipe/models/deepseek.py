"""A DeepSeek-V3-style transformer, whole or as one pipeline stage, tagged region by region.

    config = DeepSeekV3Config.tiny()
    first = DeepSeekV3Stage(config, range(0, 1), embed=True)
    last = DeepSeekV3Stage(config, range(1, 2), head=True)
    logits = last(first(tokens))                       # equal to DeepSeekV3Stage(config, embed=True, head=True)(tokens)

Region paths: "embed", "block0/attention", "block0/mlp" or "block0/moe/router" and so on, "head".

Source: DeepSeek-V3 report (arXiv 2412.19437, section 2.1), without multi-token prediction and auxiliary balance loss.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from annopipe import annotate
from annopipe.errors import GraphError
from annopipe.models.attention import LatentAttention
from annopipe.models.config import DeepSeekV3Config
from annopipe.models.exchange import Group
from annopipe.models.initial import initialise, materialise
from annopipe.models.layers import SwiGLU
from annopipe.models.moe import MoE

__all__ = ["Block", "DeepSeekV3Stage", "tiny_stage"]


class Block(nn.Module):
    """One transformer block: latent attention, then experts (or a dense feed-forward in the first blocks).

    Args:
        layer: the block's number in the whole model, which is also its region's name.
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
        super().__init__()
        self.layer = layer
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.rms_eps, device=device, dtype=dtype)
        self.attention = LatentAttention(config, device, dtype)
        self.feed_norm = nn.RMSNorm(config.hidden, eps=config.rms_eps, device=device, dtype=dtype)
        self.feed_region = "moe" if config.has_experts(layer) else "mlp"
        self.feed: nn.Module
        if config.has_experts(layer):
            self.feed = moe(config, group, device, dtype)
        else:
            self.feed = SwiGLU(config.hidden, config.intermediate, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same shape."""
        with annotate.region(f"block{self.layer}"):
            with annotate.region("attention"):
                x = x + self.attention(self.attention_norm(x))
            with annotate.region(self.feed_region):
                out: Tensor = x + self.feed(self.feed_norm(x))
                return out


class DeepSeekV3Stage(nn.Module):
    """Some blocks of a model, with the embedding before them and the output head after them if asked for.

    Parameters have the names and first values that they have in the whole model (``annopipe/models/initial.py``), so
    stages and expert-parallel ranks built with one seed are slices of one model.

    Args:
        layers: numbers of the blocks; all of them by default.
        group: the expert-parallel process group (or its name), None to hold all experts.
        embed: whether the input is tokens, int64 [batch, sequence]; else it is [batch, sequence, hidden].
        head: whether the output is logits, [batch, sequence, vocabulary]; else it is [batch, sequence, hidden].
        seed: None leaves memory as allocated, for a checkpoint to fill.
        device: "meta" allocates nothing; call ``to_empty`` and ``reset_parameters`` later.
        moe: the class of the expert layers.

    Raises:
        GraphError: a layer that the config does not have, or experts that the group cannot share equally.

    >>> stage = DeepSeekV3Stage(DeepSeekV3Config.tiny(), embed=True, head=True)
    >>> stage(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 64])
    """

    def __init__(
        self,
        config: DeepSeekV3Config,
        layers: Iterable[int] | None = None,
        group: Group | None = None,
        *,
        embed: bool = False,
        head: bool = False,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        moe: type[MoE] = MoE,
    ) -> None:
        super().__init__()
        self.config = config
        numbers = list(range(config.layers) if layers is None else layers)
        if len(set(numbers)) != len(numbers):
            raise GraphError(f"DeepSeekV3Stage: layers {numbers} name a block twice: give each one once")
        for number in numbers:
            if not 0 <= number < config.layers:
                raise GraphError(f"DeepSeekV3Stage: layer {number} is not one of the model's {config.layers} (0 first)")
        meta = torch.device("meta")
        self.embed = nn.Embedding(config.vocabulary, config.hidden, device=meta, dtype=dtype) if embed else None
        blocks = {str(n): Block(config, n, group, moe, meta, dtype) for n in numbers}
        self.blocks = nn.ModuleDict(blocks)
        self.norm = nn.RMSNorm(config.hidden, eps=config.rms_eps, device=meta, dtype=dtype) if head else None
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False, device=meta, dtype=dtype) if head else None
        if torch.device(device).type != "meta":
            materialise(self, device)
            if seed is not None:
                self.reset_parameters(seed)

    def reset_parameters(self, seed: int = 0) -> None:
        """Give every parameter and buffer its first value again."""
        initialise(self, self.config.init_std, seed)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or hidden values, to hidden values or logits; see the class."""
        if self.embed is not None:
            with annotate.region("embed"):
                x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            with annotate.region("head"):
                x = self.head(self.norm(x))
        return x


def tiny_stage() -> tuple[DeepSeekV3Stage, tuple[Tensor, ...]]:
    """A tiny stage with an example input, for ``annopipe inspect annopipe.models:tiny_stage``.

    Its experts are spread over all ranks where torch.distributed is initialised.
    """
    config = DeepSeekV3Config.tiny()
    group = dist.group.WORLD if dist.is_initialized() else None
    return DeepSeekV3Stage(config, group=group), (torch.zeros(2, 8, config.hidden, requires_grad=True),)
