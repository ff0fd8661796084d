"""AP106: tag shared experts."""

from rewriters.anchors import Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

RULE = Rule(
    code="AP106",
    name="shared",
    summary='Tag the experts that every token visits: annopipe.region("shared").',
    why="""\
Shared experts need no exchange, so they are what hides one. Often they are called inside of a sum, which is then in the
region as well; --extent call --unsafe takes the call out.
""",
    anchors=tuple(
        Anchor("shared", f"self.{name}")
        for name in ("shared_experts", "shared_expert", "shared_mlp", "shared_experts_compute")
    ),
    changes=(
        (
            """\
class Block(Module):
    def forward(self, x, rows):
        rows = rows + self.shared_experts(x)
        return rows
""",
            """\
import annopipe
class Block(Module):
    def forward(self, x, rows):
        with annopipe.region("shared"):
            rows = rows + self.shared_experts(x)
        return rows
""",
        ),
    ),
    leaves=("class Block(Module):\n    def f(self):\n        return self.shared_experts.weight\n",),
)
