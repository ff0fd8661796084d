"""The transformer block that all models here share: attention, then a feed-forward, each added to what it read."""

from torch import Tensor, nn

from annopipe import annotate

__all__ = ["TransformerBlock"]


class TransformerBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + feed(norm(x))``, each in its region.

    Args:
        layer: the block's number in the whole model, which is also its region's name.
        attention_norm, attention: the first half.
        feed_norm, feed: the second half.
        feed_region: its region: "moe" or "mlp".

    >>> import torch
    >>> block = TransformerBlock(0, nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity(), "mlp")
    >>> block(torch.ones(1)).item()
    4.0
    """

    def __init__(
        self,
        layer: int,
        attention_norm: nn.Module,
        attention: nn.Module,
        feed_norm: nn.Module,
        feed: nn.Module,
        feed_region: str,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_norm = feed_norm
        self.feed = feed
        self.feed_region = feed_region

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same shape."""
        with annotate.region(f"block{self.layer}"):
            with annotate.region("attention"):
                x = x + self.attention(self.attention_norm(x))
            with annotate.region(self.feed_region):
                out: Tensor = x + self.feed(self.feed_norm(x))
                return out
