"""AP101: tag what sends tokens to their experts."""

from rewriters.anchors import Anchor
from rewriters.rules.rule import Rule

__all__ = ["RULE"]

_NAMES = (
    *(
        f"self.token_dispatcher.{name}"
        for name in ("dispatch", "token_dispatch", "dispatch_preprocess", "dispatch_postprocess")
    ),
    *(f"self.{name}" for name in ("dispatch", "_dispatch_tokens", "permute_and_all_to_all")),
    *(f"self.experts.dispatcher.dispatch_{half}" for half in "ab"),
    "_token_dispatch",
    "fast_encode",
)

RULE = Rule(
    code="AP101",
    name="dispatch",
    summary='Tag calls that send tokens to their experts: annopipe.comm("dispatch").',
    why="""\
Dispatchers of torchtitan, Megatron-LM, transformers, OLMo-core, SGLang and Tutel, by name. All-to-alls themselves are
AP108's. A method of the same file that is tagged where it is called is not tagged inside, too.
""",
    anchors=tuple(Anchor("dispatch", name) for name in _NAMES),
    changes=(
        (
            """\
class Routed(Module):
    def forward(self, x, ids):
        # to the experts
        rows, counts = self.token_dispatcher.dispatch(x, ids)  # waits
        return rows
""",
            """\
import annopipe
class Routed(Module):
    def forward(self, x, ids):
        # to the experts
        with annopipe.comm("dispatch"):
            rows, counts = self.token_dispatcher.dispatch(x, ids)  # waits
        return rows
""",
        ),
    ),
    leaves=("def f(events):\n    return events.dispatch(1)\n",),
    refuses=(
        (
            """\
class Routed(Module):
    async def forward(self, x):
        rows = await self.dispatch(x)
""",
            "suspends",
        ),
    ),
)
