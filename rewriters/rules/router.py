"""AP105: tag the router."""

from rewriters.anchors import Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

_EXPERTS = ("experts", "routed_experts", "inner_experts", "input_linear", "token_dispatcher")

RULE = Rule(
    code="AP105",
    name="router",
    summary='Tag what chooses the experts of each token: annopipe.region("router").',
    why="""\
A gate is a router only where there are experts: self.gate of a class without any is part of a gated feed-forward, and
stays as it is.
""",
    anchors=tuple(Anchor("router", f"self.{name}", _EXPERTS) for name in ("gate", "router", "route", "topk")),
    changes=(
        (
            """\
class Block(Module):
    def forward(self, x):
        _, weights, ids = self.gate(x)
        return weights * self.experts(x, ids)
""",
            """\
import annopipe
class Block(Module):
    def forward(self, x):
        with annopipe.region("router"):
            _, weights, ids = self.gate(x)
        return weights * self.experts(x, ids)
""",
        ),
    ),
    leaves=(
        """\
class Gated(Module):
    def forward(self, x):
        return self.gate(x) * self.up(x)
""",
    ),
)
