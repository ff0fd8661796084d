"""AP102: tag calls of experts."""

from rewriters.anchors import Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

_METHODS = (
    *("experts", "inner_experts", "routed_experts", "experts_forward", "expert_local"),
    *("compute_local_experts", "permute_and_compute", "routed_experts_compute"),
)

RULE = Rule(
    code="AP102",
    name="experts",
    summary='Tag calls of the experts: annopipe.region("experts").',
    why="""\
The call is tagged and not the body of the experts' forward: libraries replace that body when the program runs (grouped
matrix products, kernels from a hub), and a tag in it would be gone. If the call also communicates, as the experts of
transformers do under expert parallelism, tags inside it win there.
""",
    anchors=(
        *(Anchor("experts", f"self.{name}") for name in _METHODS),
        Anchor("experts", "self.moe", ("experts",)),
        Anchor("experts", "_run_experts_grouped_mm"),
        Anchor("experts", "apply_module(self.experts)"),
    ),
    changes=(
        (
            """\
class Block(Module):
    def forward(self, x, ids, weights):
        y = self.experts(
            x,  # tokens
            ids,
            weights,
        ).view(-1)
        return y
""",
            """\
import annopipe
class Block(Module):
    def forward(self, x, ids, weights):
        with annopipe.region("experts"):
            y = self.experts(
                x,  # tokens
                ids,
                weights,
            ).view(-1)
        return y
""",
        ),
        (
            """\
import annopipe as ap
class Block(Module):
    def forward(self, x):
        return apply_module(self.experts)(x)
""",
            """\
import annopipe as ap
class Block(Module):
    def forward(self, x):
        with ap.region("experts"):
            return apply_module(self.experts)(x)
""",
        ),
    ),
    leaves=(
        "class Layer(Module):\n    def forward(self, x):\n        return self.moe(x)\n",
        "class Block(Module):\n    def forward(self, x):\n        return self.experts(x)  # annopipe: skip\n",
    ),
    refuses=(
        ("class B:\n    def f(self):\n        return lambda y: self.experts(y)\n", "inside a lambda"),
        ("class B:\n    def f(self, x):\n        return sum(self.experts(y) for y in x)\n", "generator expression"),
        ("class B:\n    def f(self, x):\n        if self.experts(x):\n            return x\n", "header of a statement"),
        ("class B:\n    def f(self, x):\n        y = x; y = self.experts(y)\n", "several statements on one line"),
        (
            "class B:\n    def f(self, x):\n        y = self.experts(x) + self.combine(x)\n",
            "combine and experts in one",
        ),
        (
            "from torch.autograd import Function\nclass B(Function):\n    def f(self, x):\n        self.experts(x)\n",
            "inside the autograd.Function B",
        ),
    ),
)
