"""AP107: tag loops over experts."""

from collections.abc import Iterable

import libcst as cst

from rewriters.names import dotted, target_names
from rewriters.reading import Found, Reading
from rewriters.rules.rule import Place, Rule
from rewriters.walking import descendants

__all__ = ["RULE"]

_CODE = "AP107"


def _find(reading: Reading) -> Iterable[Place]:
    for found in reading.loops:
        if isinstance(found.node, cst.For) and "experts" in reading.members(found.owner) and _over_experts(found):
            yield Place(found, _CODE, "experts", f"for {next(target_names(found.node.target), '')}")


def _over_experts(found: Found) -> bool:
    loop = cst.ensure_type(found.node, cst.For)
    if not any("expert" in name for part in (loop.target, loop.iter) for name in _names(part)):
        return False
    own = {name for name in target_names(loop.target) if "expert" in name}
    for node in descendants(loop.body):
        if isinstance(node, cst.Call):
            name = dotted(node.func)
            if name in own or name.endswith(".index_add_") or name in ("expert", "expert_layer", "self.experts[]"):
                return True
    return False


def _names(part: cst.CSTNode) -> list[str]:
    return [node.value for node in (part, *descendants(part)) if isinstance(node, cst.Name)]


RULE = Rule(
    code=_CODE,
    name="expert-loop",
    summary='Tag a loop that calls one expert after the other: annopipe.region("experts").',
    why="""\
In a class that has self.experts, a loop is one over experts if its header speaks of experts and its body calls one, or
adds what one returns with index_add_. The loop is tagged as a whole. Loops in a class of experts are left alone: the
call of that class is AP102's.
""",
    find=_find,
    changes=(
        (
            """\
class Block(Module):
    def forward(self, x, hit):
        for index in self.experts_here(hit):
            expert = self.experts[index]
            x[index] += expert(x[index])
        return x
""",
            """\
import annopipe
class Block(Module):
    def forward(self, x, hit):
        with annopipe.region("experts"):
            for index in self.experts_here(hit):
                expert = self.experts[index]
                x[index] += expert(x[index])
        return x
""",
        ),
    ),
    leaves=(
        """\
class Block(Module):
    def reset(self):
        for expert in self.experts:
            expert.reset_parameters()
""",
    ),
    refuses=(
        (
            "class B:\n    def f(self, x):\n        for e, expert in self.experts:\n            yield expert(x)\n",
            "suspends",
        ),
    ),
)
