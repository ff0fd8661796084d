"""A dense GPT, whole or as one pipeline stage: layer normalisation with bias, learned positions, GELU.

    config = GPTConfig.tiny()
    first, last = GPTStage(config, [0], embed=True), GPTStage(config, [1], head=True)
    logits = last(first(tokens))

Region paths: "embed", "block0/attention", "block0/mlp", "head". With ``tied_head`` the head's weight is that of the
token embedding: one parameter in a stage that has both; two with equal first values where they are in two stages, whose
gradients then have to be added.

Sources: GPT-2 report (Radford et al. 2019, section 2.3) and its code (openai/gpt-2, ``src/model.py``), without dropout
and without scaling residual weights by depth at the start; GPT-3 report (arXiv 2005.14165, table 2.1), with dense
attention in every layer.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from annopipe.errors import GraphError
from annopipe.models.block import TransformerBlock
from annopipe.models.self_attention import GELUFeedForward, SelfAttention
from annopipe.models.sizes import check_integers, check_positive, check_relations
from annopipe.models.stage import Stage

__all__ = ["GPTBlock", "GPTConfig", "GPTStage"]

_AT_LEAST_ONE = ("vocabulary", "context", "hidden", "layers", "heads", "intermediate")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """The sizes of one model. Widths are numbers of values per token.

    vocabulary: number of different tokens.  context: number of positions.
    hidden: width of the residual stream.  layers: number of blocks.  heads: attention heads, a divisor of ``hidden``.
    intermediate: inner width of the feed-forward.
    tied_head: whether the output head has the weight of the token embedding.
    norm_eps: added to the variance in normalisations.  init_std: standard deviation of freshly initialised weights.

    >>> GPTConfig.gpt2().intermediate
    3072
    >>> dataclasses.replace(GPTConfig.tiny(), heads=3)
    Traceback (most recent call last):
    annopipe.errors.GraphError: GPTConfig: a width of 32 cannot be shared equally by 3 heads
    """

    vocabulary: int
    context: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    tied_head: bool = True
    norm_eps: float = 1e-5
    init_std: float = 0.02

    def __post_init__(self) -> None:
        check_integers(self, 1, _AT_LEAST_ONE)
        check_positive(self, ("norm_eps", "init_std"))
        check_relations(
            self,
            [
                (
                    self.hidden % self.heads == 0,
                    f"a width of {self.hidden} cannot be shared equally by {self.heads} heads",
                )
            ],
        )

    @classmethod
    def _published(cls, hidden: int, layers: int, heads: int, context: int = 1024) -> "GPTConfig":
        return cls(
            vocabulary=50257, context=context, hidden=hidden, layers=layers, heads=heads, intermediate=4 * hidden
        )

    @classmethod
    def gpt2(cls) -> "GPTConfig":
        """GPT-2 with 124 million parameters; source of this and the next three: ``hparams.json`` beside the weights."""
        return cls._published(768, 12, 12)

    @classmethod
    def gpt2_medium(cls) -> "GPTConfig":
        """GPT-2 with 355 million parameters."""
        return cls._published(1024, 24, 16)

    @classmethod
    def gpt2_large(cls) -> "GPTConfig":
        """GPT-2 with 774 million parameters."""
        return cls._published(1280, 36, 20)

    @classmethod
    def gpt2_xl(cls) -> "GPTConfig":
        """GPT-2 with 1.56 billion parameters."""
        return cls._published(1600, 48, 25)

    @classmethod
    def gpt3_175b(cls) -> "GPTConfig":
        """GPT-3 with 175 billion parameters: arXiv 2005.14165, table 2.1; vocabulary as in GPT-2."""
        return cls._published(12288, 96, 96, context=2048)

    @classmethod
    def gpt_5b(cls, vocabulary: int = 50257) -> "GPTConfig":
        """GPT with 4.8 billion parameters in its blocks, of no published model, for vocabularies of any size."""
        config = cls._published(4096, 24, 32, context=2048)
        return dataclasses.replace(config, vocabulary=vocabulary, tied_head=False)

    @classmethod
    def tiny(cls) -> "GPTConfig":
        """About 30,000 parameters, of no published model: runs and traces in a moment."""
        return cls(vocabulary=64, context=32, hidden=32, layers=2, heads=4, intermediate=128, init_std=0.2)


class GPTBlock(TransformerBlock):
    """One block: causal self-attention, then a feed-forward with GELU; biases everywhere.

    >>> GPTBlock(GPTConfig.tiny(), layer=0)(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        config: GPTConfig,
        layer: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            layer,
            nn.LayerNorm(config.hidden, eps=config.norm_eps, **made),
            SelfAttention(config.hidden, config.heads, **made),
            nn.LayerNorm(config.hidden, eps=config.norm_eps, **made),
            GELUFeedForward(config.hidden, config.intermediate, **made),
            "mlp",
        )


class GPTStage(Stage):
    """Some blocks of a GPT, with the embedding before them and the output head after them if asked for.

    Args:
        config: the sizes of the whole model.
        layers: numbers of the blocks; all of them by default.
        embed: whether the input is tokens, int64 [batch, sequence]; else it is [batch, sequence, hidden].
        head: whether the output is logits, [batch, sequence, vocabulary]; else it is [batch, sequence, hidden].
        seed: None leaves memory as allocated, for a checkpoint to fill.
        device: "meta" allocates nothing; call ``to_empty`` and ``reset_parameters`` later.
        dtype: of all parameters.

    Raises:
        GraphError: a layer that the config does not have; in forward: more tokens than positions.

    >>> stage = GPTStage(GPTConfig.tiny(), embed=True, head=True)
    >>> stage(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 64])
    >>> stage.head.weight is stage.embed.tokens.weight
    True
    """

    config: GPTConfig

    def __init__(
        self,
        config: GPTConfig,
        layers: Iterable[int] | None = None,
        *,
        embed: bool = False,
        head: bool = False,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        made: dict[str, Any] = {"device": torch.device("meta"), "dtype": dtype}
        super().__init__(
            config,
            layers,
            lambda number: GPTBlock(config, number, **made),
            embed=_Embedding(config, **made) if embed else None,
            norm=nn.LayerNorm(config.hidden, eps=config.norm_eps, **made) if head else None,
            head=nn.Linear(config.hidden, config.vocabulary, bias=False, **made) if head else None,
            seed=seed,
            device=device,
            tied={"head.weight": "embed.tokens.weight"} if config.tied_head else {},
        )


class _Embedding(nn.Module):
    """The sum of a token's and its position's vectors."""

    def __init__(self, config: GPTConfig, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden, device=device, dtype=dtype)
        self.positions = nn.Embedding(config.context, config.hidden, device=device, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        sequence, context = tokens.shape[-1], self.positions.num_embeddings
        if sequence > context:
            raise GraphError(f"GPTStage: {sequence} tokens in a sequence, but the config has {context} positions")
        out: Tensor = self.tokens(tokens) + self.positions(torch.arange(sequence, device=tokens.device))
        return out
