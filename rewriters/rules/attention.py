"""AP104: tag attention."""

from rewriters.anchors import Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

_FEED_FORWARD = (
    "mlp",
    "feed_forward",
    "ffn",
    "moe",
    "experts",
    "block_sparse_moe",
    "intermediate",
    "output",
    "fc1",
    "mlps",
)

RULE = Rule(
    code="AP104",
    name="attention",
    summary='Tag the attention of a decoder layer: annopipe.region("attention").',
    why="""\
A class that calls self.self_attn (or attention, attn, self_attention) and also has a feed-forward is a layer; the
statement of the call is tagged. Where the statement also holds the norm and the addition of the residual, so does the
region.
""",
    anchors=tuple(
        Anchor("attention", f"self.{name}", _FEED_FORWARD)
        for name in ("self_attn", "attention", "attn", "self_attention")
    ),
    changes=(
        (
            """\
class Layer(Module):
    def forward(self, x):
        h, _ = self.self_attn[0](self.norm(x))
        return h + self.mlp(h)
""",
            """\
import annopipe
class Layer(Module):
    def forward(self, x):
        with annopipe.region("attention"):
            h, _ = self.self_attn[0](self.norm(x))
        return h + self.mlp(h)
""",
        ),
    ),
    leaves=(
        """\
class Pooling(Module):
    def forward(self, x):
        return self.attention(x)  # no layer: it has no feed-forward
""",
    ),
)
