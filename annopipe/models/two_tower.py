"""An image-text model of two towers: each is a chain of blocks, and their last vectors meet in a contrastive loss.

    config = TwoTowerConfig.tiny()
    images, texts = ImageTower(config), TextTower(config)
    loss = Contrast(config)(images(pixels), texts(tokens))

A tower may be cut: ``ImageTower(config, layers=[0, 1], head=False)`` has its embedding and its first two blocks.
Region paths: "image/embed", "image/block0/attention", "image/block0/mlp", "image/head", the same of "text", and
"contrast".

Source: CLIP report (arXiv 2103.00020, sections 2.3 and 2.4): vision transformer with a class token, whose vector is the
image's; causal text transformer, whose last token's vector is the text's; a learned temperature. Without masks: a text
fills its context.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annopipe import annotate
from annopipe.errors import GraphError
from annopipe.models.block import TransformerBlock
from annopipe.models.self_attention import GELUFeedForward, SelfAttention
from annopipe.models.sizes import check_integers, check_relations

__all__ = ["Contrast", "ImageTower", "TextTower", "TowerSizes", "TwoTowerConfig"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TowerSizes:
    """One tower: width, blocks, heads and the inner width of the feed-forward."""

    hidden: int
    layers: int
    heads: int
    intermediate: int

    def __post_init__(self) -> None:
        check_integers(self, 1, ("hidden", "layers", "heads", "intermediate"))
        share = f"a width of {self.hidden} cannot be shared equally by {self.heads} heads"
        check_relations(self, [(self.hidden % self.heads == 0, share)])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TwoTowerConfig:
    """The sizes of one model.

    image, text: the towers.  pixels: side of a square image.  patch: side of what becomes one token.
    vocabulary, context: of texts.  joint: width of the vectors that are compared.

    >>> TwoTowerConfig.clip_l14().patches
    256
    """

    image: TowerSizes
    text: TowerSizes
    pixels: int
    patch: int
    vocabulary: int
    context: int
    joint: int

    def __post_init__(self) -> None:
        check_integers(self, 1, ("pixels", "patch", "vocabulary", "context", "joint"))
        cut = f"an image of {self.pixels} pixels a side cannot be cut into patches of {self.patch}"
        check_relations(self, [(self.pixels % self.patch == 0, cut)])

    @property
    def patches(self) -> int:
        """Tokens of an image, without the class token."""
        side = self.pixels // self.patch
        return side * side

    @classmethod
    def clip_l14(cls) -> "TwoTowerConfig":
        """CLIP ViT-L/14, 428 million parameters: arXiv 2103.00020, table 20."""
        return cls(
            image=TowerSizes(hidden=1024, layers=24, heads=16, intermediate=4096),
            text=TowerSizes(hidden=768, layers=12, heads=12, intermediate=3072),
            pixels=224,
            patch=14,
            vocabulary=49408,
            context=77,
            joint=768,
        )

    @classmethod
    def clip_bigg14(cls) -> "TwoTowerConfig":
        """OpenCLIP ViT-bigG/14, 2.5 billion parameters: open_clip/model_configs/ViT-bigG-14.json."""
        return cls(
            image=TowerSizes(hidden=1664, layers=48, heads=16, intermediate=8192),
            text=TowerSizes(hidden=1280, layers=32, heads=20, intermediate=5120),
            pixels=224,
            patch=14,
            vocabulary=49408,
            context=77,
            joint=1280,
        )

    @classmethod
    def tiny(cls) -> "TwoTowerConfig":
        """About 60,000 parameters, of no published model: runs and traces in a moment."""
        return cls(
            image=TowerSizes(hidden=32, layers=3, heads=4, intermediate=64),
            text=TowerSizes(hidden=24, layers=2, heads=2, intermediate=48),
            pixels=8,
            patch=2,
            vocabulary=64,
            context=6,
            joint=16,
        )


class _Tower(nn.Module):
    """Embedding, blocks and head of a tower; what is left out is on another stage."""

    def __init__(
        self,
        region: str,
        sizes: TowerSizes,
        layers: Iterable[int] | None,
        *,
        embed: nn.Module | None,
        head: nn.Module | None,
        causal: bool,
        made: dict[str, Any],
    ) -> None:
        super().__init__()
        numbers = [*range(sizes.layers)] if layers is None else [*layers]
        if unknown := [number for number in numbers if not 0 <= number < sizes.layers]:
            raise GraphError(f"{type(self).__name__}: layer {unknown[0]} is not one of {sizes.layers} (0 first)")
        self.region = region
        self.embed, self.head = embed, head
        self.blocks = nn.ModuleDict({str(n): _block(sizes, n, causal=causal, made=made) for n in numbers})

    def forward(self, x: Tensor) -> Tensor:
        with annotate.region(self.region):
            if self.embed is not None:
                with annotate.region("embed"):
                    x = self.embed(x)
            for block in self.blocks.values():
                x = block(x)
            if self.head is not None:
                with annotate.region("head"):
                    x = self.head(x)
        return x


class ImageTower(_Tower):
    """Some blocks of the image tower; pixels [batch, 3, side, side] to vectors [batch, joint] when it has both ends.

    >>> ImageTower(TwoTowerConfig.tiny())(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        config: TwoTowerConfig,
        layers: Iterable[int] | None = None,
        *,
        embed: bool = True,
        head: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            "image",
            config.image,
            layers,
            embed=_Patches(config, made) if embed else None,
            head=_Pick(config.image.hidden, config.joint, 0, made) if head else None,
            causal=False,
            made=made,
        )


class TextTower(_Tower):
    """Some blocks of the text tower; tokens [batch, context] to vectors [batch, joint] when it has both ends.

    >>> TextTower(TwoTowerConfig.tiny())(torch.ones(2, 6, dtype=torch.int64)).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        config: TwoTowerConfig,
        layers: Iterable[int] | None = None,
        *,
        embed: bool = True,
        head: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            "text",
            config.text,
            layers,
            embed=_Words(config, made) if embed else None,
            head=_Pick(config.text.hidden, config.joint, -1, made) if head else None,
            causal=True,
            made=made,
        )


class Contrast(nn.Module):
    """The symmetric contrastive loss of a batch of image and text vectors, of which the ones of one number belong.

    >>> vectors = torch.eye(2, 16)
    >>> Contrast(TwoTowerConfig.tiny())(vectors, vectors) < Contrast(TwoTowerConfig.tiny())(vectors, vectors.flip(0))
    tensor(True)
    """

    def __init__(
        self, config: TwoTowerConfig, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.config = config
        # The logarithm of 1 / 0.07, where CLIP begins.
        self.temperature = nn.Parameter(torch.full((), 2.6593, device=device, dtype=dtype))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        """[batch, joint] twice to a scalar."""
        with annotate.region("contrast"):
            similar = F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).t() * self.temperature.exp()
            own = torch.arange(images.shape[0], device=images.device)
            return (F.cross_entropy(similar, own) + F.cross_entropy(similar.t(), own)) / 2


class _Patches(nn.Module):
    """One token for each patch, behind a class token; and positions."""

    def __init__(self, config: TwoTowerConfig, made: dict[str, Any]) -> None:
        super().__init__()
        hidden = config.image.hidden
        self.patch = nn.Conv2d(3, hidden, config.patch, config.patch, bias=False, **made)
        self.first = nn.Parameter(torch.zeros(hidden, **made))
        self.positions = nn.Parameter(torch.zeros(config.patches + 1, hidden, **made))
        self.norm = nn.LayerNorm(hidden, **made)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.patch(pixels).flatten(2).transpose(1, 2)
        first = self.first.expand(tokens.shape[0], 1, -1)
        out: Tensor = self.norm(torch.cat((first, tokens), 1) + self.positions)
        return out


class _Words(nn.Module):
    """The sum of a token's and its position's vectors."""

    def __init__(self, config: TwoTowerConfig, made: dict[str, Any]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.text.hidden, **made)
        self.positions = nn.Parameter(torch.zeros(config.context, config.text.hidden, **made))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return out


class _Pick(nn.Module):
    """One token's vector, normalised and projected."""

    def __init__(self, hidden: int, joint: int, place: int, made: dict[str, Any]) -> None:
        super().__init__()
        self.place = place
        self.norm = nn.LayerNorm(hidden, **made)
        self.project = nn.Linear(hidden, joint, bias=False, **made)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.norm(x[:, self.place]))
        return out


def _block(sizes: TowerSizes, number: int, *, causal: bool, made: dict[str, Any]) -> TransformerBlock:
    return TransformerBlock(
        number,
        nn.LayerNorm(sizes.hidden, **made),
        SelfAttention(sizes.hidden, sizes.heads, causal=causal, **made),
        nn.LayerNorm(sizes.hidden, **made),
        GELUFeedForward(sizes.hidden, sizes.intermediate, **made),
        "mlp",
    )
