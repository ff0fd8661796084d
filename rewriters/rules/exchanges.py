"""AP108: tag all-to-alls."""

from rewriters.anchors import EXCHANGE, Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

_NAMES = (
    *(f"torch.distributed.{name}" for name in ("all_to_all_single", "all_to_all")),
    *(f"torch.distributed.nn.functional.{name}" for name in ("all_to_all_single", "all_to_all")),
    *(
        f"torch.distributed._functional_collectives.{name}"
        for name in ("all_to_all_single", "all_to_all_single_autograd")
    ),
    "torch.ops._c10d_functional.all_to_all_single",
    "all_to_all",
    *(f"{module}.all_to_all" for module in ("spmd", "C", "ops")),
    *(f"{function}.apply" for function in ("_AllToAll", "AllToAllOp")),
)

RULE = Rule(
    code="AP108",
    name="exchanges",
    summary='Tag all-to-alls: annopipe.comm("dispatch") or comm("combine").',
    why="""\
What an all-to-all is for is told by, in this order: names of counts (what is sent, what it is assigned to, the function
around it) or torch.no_grad() around it: a count exchange, the first message of a dispatch; the name of a function
around it; whether it comes before or behind the experts in their block. Otherwise it is refused: --role says it.
""",
    anchors=tuple(Anchor(EXCHANGE, name) for name in _NAMES),
    changes=(
        (
            """\
import torch.distributed as dist
class Block(Module):
    def forward(self, x, tokens_per_expert, received):
        dist.all_to_all_single(received, tokens_per_expert)
        x = all_to_all(x, self.group)
        x = self.experts(x)  # annopipe: skip
        x = all_to_all(x, self.group)
        return x
""",
            """\
import annopipe
import torch.distributed as dist
class Block(Module):
    def forward(self, x, tokens_per_expert, received):
        with annopipe.comm("dispatch"):
            dist.all_to_all_single(received, tokens_per_expert)
        with annopipe.comm("dispatch"):
            x = all_to_all(x, self.group)
        x = self.experts(x)  # annopipe: skip
        with annopipe.comm("combine"):
            x = all_to_all(x, self.group)
        return x
""",
        ),
    ),
    leaves=("class Auto(Module):\n    def forward(self, x):\n        return self.all_to_all(x)\n",),
    refuses=(("def exchange(x, group):\n    return all_to_all(x, group)\n", "nothing says whether"),),
)
