"""AP103: tag what brings the experts' outputs back."""

from rewriters.anchors import Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

_NAMES = (
    *(
        f"self.token_dispatcher.{name}"
        for name in ("combine", "token_combine", "combine_preprocess", "combine_postprocess")
    ),
    *(f"self.{name}" for name in ("combine", "_combine_tokens", "reverse_all_to_all", "unpermute")),
    *(f"self.experts.dispatcher.combine_{half}" for half in "ab"),
    "_token_combine",
    "deterministic_scatter_add",
    "fast_decode",
)

RULE = Rule(
    code="AP103",
    name="combine",
    summary='Tag calls that bring the outputs of experts back: annopipe.comm("combine").',
    why="""\
The counterparts of AP101's names. scatter_add_, index_add_ and permute alone are no anchors: tensors have those methods
everywhere.
""",
    anchors=tuple(Anchor("combine", name) for name in _NAMES),
    changes=(
        (
            """\
import torch
class Routed(torch.nn.Module):
    def forward(self, rows, state):
        if rows.is_cuda:
            return self.token_dispatcher.combine(rows, state)
        return rows
""",
            """\
import annopipe
import torch
class Routed(torch.nn.Module):
    def forward(self, rows, state):
        if rows.is_cuda:
            with annopipe.comm("combine"):
                return self.token_dispatcher.combine(rows, state)
        return rows
""",
        ),
    ),
    leaves=("def f(x, mask, rows):\n    x.index_add_(0, mask.permute(2, 1, 0), rows)\n",),
    refuses=(("class R:\n    def f(self, x):\n        if x: y = self.combine(x)\n", "line of its own"),),
)
