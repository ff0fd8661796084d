"""AP401: run the layers of a model on nano-batches."""

import libcst as cst

from rewriters.hoisting import new_name
from rewriters.imports import add_import, bind
from rewriters.layer_loops import LayerLoop, layer_loops
from rewriters.names import dotted
from rewriters.reading import Reading
from rewriters.replacing import replace, statements
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site

__all__ = ["RULE"]

_CODE = "AP401"


def _apply(reading: Reading, settings: Settings) -> Outcome:
    sites, wanted = [], {}
    annopipe = bind(reading, "annopipe", ("nano_batches",))
    torch = bind(reading, "torch", ("cat",))
    taken = set(reading.names)
    for found in layer_loops(reading):
        line, end_line = reading.lines(found.loop)
        told = _call(found, settings)
        around = [node for node in found.found.stack if isinstance(node, cst.For) and node is not found.loop]
        if any("nano_batches(" in reading.tree.code_for_node(node.iter) for node in around):
            sites.append(Site(line, end_line, _CODE, "", f"self.{found.member}", "already", "runs on nano-batches"))
        elif isinstance(told, str):
            sites.append(Site(line, end_line, _CODE, "", f"self.{found.member}", "refused", told))
        else:
            state, split = told
            parts = {name: new_name(f"nano_{name}", taken) for name in (state, *split)}
            outputs = new_name("nano_outputs", taken)
            whole, part = ", ".join(parts), ", ".join(parts.values())
            if split:
                whole = f"({whole})"
            renamed = _renamed(found.loop.with_changes(leading_lines=()), parts)
            code = (
                f"{outputs} = []\nfor {part} in {annopipe.names['nano_batches']}({whole}, {settings.nano_batches}):\n"
                f"    pass\n    {outputs}.append({parts[state]})\n{state} = {torch.names['cat']}({outputs})\n"
            )
            first, outer, last = statements(code, reading.tree)
            block = cst.ensure_type(cst.ensure_type(outer, cst.For).body, cst.IndentedBlock)
            outer = outer.with_changes(body=block.with_changes(body=[renamed, block.body[-1]]))
            wanted[id(found.loop)] = [first, outer, last]
            sites.append(Site(line, end_line, _CODE, "", f"self.{found.member}", "converted"))
    tree = replace(reading.tree, wanted)
    for binding in (annopipe, torch):
        if wanted and binding.statement:
            tree = add_import(tree, binding.statement)
    return Outcome(tree, tuple(sites))


def _call(found: LayerLoop, settings: Settings) -> tuple[str, list[str]] | str:
    """What goes through the layers, and what is cut with it; or why the loop cannot be changed."""
    body = found.loop.body.body
    line = body[0] if len(body) == 1 else None
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if not isinstance(small, cst.Assign) or found.loop.orelse is not None or len(small.targets) != 1:
        return "the body is more than one call of the layer: nano-batch it by hand, with annopipe.nano_batches"
    state, call = dotted(small.targets[0].target), small.value
    if not isinstance(small.targets[0].target, cst.Name) or not isinstance(call, cst.Call):
        return "a layer returns more than its output: nano-batch it by hand"
    if dotted(call.func) != found.variable or not call.args or dotted(call.args[0].value) != state:
        return f"a layer is not called as {state} = {found.variable}({state}, ...): nano-batch it by hand"
    split = []
    for argument in call.args[1:]:
        name = dotted(argument.value)
        keyword = argument.keyword.value if argument.keyword else name
        if "cache" in keyword or "past_key_value" in keyword:
            return f"{keyword} is filled layer by layer: nano-batches are for training, without a cache"
        if found.index and found.index in name:
            return f"the index {found.index} is an argument: nano-batch it by hand"
        if name in settings.nano_split and isinstance(argument.value, cst.Name):
            split.append(name)
        elif isinstance(argument.value, cst.BaseNumber | cst.BaseString) or name in ("None", "True", "False"):
            continue
        elif name not in settings.nano_whole and not name.startswith("self."):
            what = name or keyword or "an argument"
            return f"does {what} have a row per sample? name it in nano-split or nano-whole of [tool.annopipe.rewrite]"
    return state, list(dict.fromkeys(split))


def _renamed(loop: cst.For, parts: dict[str, str]) -> cst.For:
    """The loop on parts: the statement's target and arguments have other names, keywords have not."""
    block = cst.ensure_type(loop.body, cst.IndentedBlock)
    line = cst.ensure_type(block.body[0], cst.SimpleStatementLine)
    assign = cst.ensure_type(line.body[0], cst.Assign)
    call = cst.ensure_type(assign.value, cst.Call)
    arguments = [a.with_changes(value=_renamed_name(a.value, parts)) for a in call.args]
    target = assign.targets[0].with_changes(target=_renamed_name(assign.targets[0].target, parts))
    assign = assign.with_changes(targets=[target], value=call.with_changes(args=arguments))
    return loop.with_changes(body=block.with_changes(body=[line.with_changes(body=[assign])]))


def _renamed_name(node: cst.BaseExpression, parts: dict[str, str]) -> cst.BaseExpression:
    return cst.Name(parts[node.value]) if isinstance(node, cst.Name) and node.value in parts else node


RULE = Rule(
    code=_CODE,
    name="nano-batch",
    safe=False,
    summary="Run a loop over layers on nano-batches, whose communication hides behind each other's computation.",
    why="""\
The loop runs once per nano-batch, each in a lane of its own, and the outputs are joined. Unsafe: what a layer computes
over the whole batch (a balance loss, batch norm, capacity) becomes one of a part, and sums round in another order.
Arguments beside the state are cut with it if they are named in nano-split, and whole if in nano-whole.
""",
    apply=_apply,
    triggers=("for ",),
    options={"nano_split": ("mask",), "nano_whole": ("freqs",)},
    changes=(
        (
            """\
import torch
class Model(Module):
    def forward(self, x, mask, freqs):
        # all layers
        for layer in self.layers:
            x = layer(x, mask=mask, freqs=freqs)  # in order
        return x
""",
            """\
import annopipe
import torch
class Model(Module):
    def forward(self, x, mask, freqs):
        # all layers
        nano_outputs = []
        for nano_x, nano_mask in annopipe.nano_batches((x, mask), 2):
            for layer in self.layers:
                nano_x = layer(nano_x, mask=nano_mask, freqs=freqs)  # in order
            nano_outputs.append(nano_x)
        x = torch.cat(nano_outputs)
        return x
""",
        ),
    ),
    leaves=("class M:\n    def reset(self):\n        for name in self.names:\n            self.reset(name)\n",),
    refuses=(
        (
            "class M:\n    def f(self, x, w):\n        for l in self.layers:\n            x = l(x, w)\n",
            "row per sample",
        ),
        ("class M:\n    def f(self, x, c):\n        for l in self.layers:\n            x = l(x, cache=c)\n", "cache"),
        (
            "class M:\n    def f(self, x):\n        for l in self.layers:\n            x, a = l(x)\n",
            "more than its output",
        ),
        ("class M:\n    def f(self, x):\n        for i, l in enumerate(self.h):\n            x = l(x, i)\n", "index i"),
    ),
)
