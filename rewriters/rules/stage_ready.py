"""AP402: make a forward run where modules are absent, as a stage's are."""

import libcst as cst

from rewriters.layer_loops import LAYERS
from rewriters.names import dotted
from rewriters.reading import Found, Reading
from rewriters.replacing import replace
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.surroundings import obstacle, statement

__all__ = ["RULE"]

_CODE = "AP402"
# Members that only the first or the last stage has.
_OPTIONAL = ("embed", "embed_tokens", "tok_embeddings", "wte", "norm", "ln_f", "head", "lm_head", "output")


def _apply(reading: Reading, settings: Settings) -> Outcome:  # noqa: ARG001 - as every rule
    sites: list[Site] = []
    wanted: dict[int, list[cst.SimpleStatementLine]] = {}
    for call in reading.calls:
        member = call.name.removeprefix("self.")
        if not call.name.startswith("self.") or member not in _OPTIONAL or call.owner is None:
            continue
        if reading.members(call.owner).isdisjoint(LAYERS):
            continue
        line, end_line = reading.lines(call.node)
        if any(
            isinstance(node, cst.IfExp) and f"{call.name} is None" in reading.tree.code_for_node(node.test)
            for node in call.stack
        ):
            sites.append(Site(line, end_line, _CODE, "", call.name, "already", "may be absent"))
            continue
        place = statement(call)
        reason = _reason(call) or obstacle(call, reading)
        if reason or not isinstance(place, cst.SimpleStatementLine):
            sites.append(Site(line, end_line, _CODE, "", call.name, "refused", reason))
            continue
        node = cst.ensure_type(call.node, cst.Call)
        none = cst.Comparison(node.func, [cst.ComparisonTarget(cst.Is(), cst.Name("None"))])
        choice = cst.IfExp(none, node.args[0].value, node)
        if place.body[0] is not call.stack[-2]:
            choice = choice.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        (earlier,) = wanted.get(id(place), [place])
        wanted[id(place)] = [cst.ensure_type(earlier.deep_replace(node, choice), cst.SimpleStatementLine)]
        sites.append(Site(line, end_line, _CODE, "", call.name, "converted"))
    return Outcome(replace(reading.tree, wanted), tuple(sites))


def _reason(call: Found) -> str:
    if call.owner is not None and any(base.endswith("PreTrainedModel") for base in call.owner.bases):
        return (
            "a model of transformers: put torch.nn.Identity, or its PipelineIdentityLayer, in place of what is absent"
        )
    node = cst.ensure_type(call.node, cst.Call)
    if not node.args or node.args[0].keyword is not None or node.args[0].star or not _is_plain(node.args[0].value):
        return "nothing says what passes if the module is absent: its first argument is no name"
    if any(isinstance(other, cst.Call) and other is not node for other in call.stack[:-1]):
        return "an argument of another call: give it a statement of its own"
    return ""


def _is_plain(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Name, cst.Attribute)) and bool(dotted(node))


RULE = Rule(
    code=_CODE,
    name="stage-ready",
    safe=False,
    summary="Let embedding, norm and head of a model be None: a stage has some of them, or none.",
    why="""\
In a class with a loop of layers, self.embed(x) becomes x if self.embed is None else self.embed(x); the same for norm
and head, as torchtitan's models do. A stage keeps its own part of the layers; ap.split needs none of this.
Models of transformers are refused: there, identity layers do it without an edit.
""",
    apply=_apply,
    changes=(
        (
            """\
class Model(Module):
    def forward(self, tokens):
        h = self.embed(tokens)  # first stage
        for layer in self.layers:
            h = layer(h)
        h = self.norm(h)
        return self.head(h)
""",
            """\
class Model(Module):
    def forward(self, tokens):
        h = tokens if self.embed is None else self.embed(tokens)  # first stage
        for layer in self.layers:
            h = layer(h)
        h = h if self.norm is None else self.norm(h)
        return h if self.head is None else self.head(h)
""",
        ),
    ),
    leaves=("class Layer(Module):\n    def forward(self, x):\n        return self.norm(x)\n",),
    refuses=(
        (
            "class M(LlamaPreTrainedModel):\n    def f(self, x):\n        self.layers\n        return self.norm(x)\n",
            "PipelineIdentityLayer",
        ),
        (
            "class M(Module):\n    def f(self, x):\n        self.layers\n        return self.head(self.norm(x))\n",
            "an argument of another call",
        ),
    ),
)
