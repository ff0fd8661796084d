"""AP403: insert PyTorch's marks at which its tracer cuts a model into stages."""

import libcst as cst

from rewriters.hoisting import new_name
from rewriters.imports import add_import, bind
from rewriters.layer_loops import LayerLoop, layer_loops
from rewriters.reading import Reading
from rewriters.replacing import Edits, replace, statements
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.surroundings import obstacle, statement

__all__ = ["RULE"]

_CODE = "AP403"


def _apply(reading: Reading, settings: Settings) -> Outcome:
    if not settings.split_at:
        return Outcome(reading.tree, ())
    binding = bind(reading, "torch.distributed.pipelining", ("pipe_split",), "names")
    mark = f"{binding.names['pipe_split']}()"
    sites: list[Site] = []
    wanted = Edits()
    indices = sorted({int(name) for name in settings.split_at if name.isdigit()})
    for found in layer_loops(reading) if indices else ():
        line, end_line = reading.lines(found.loop)
        if mark in reading.tree.code_for_node(found.loop):
            sites.append(Site(line, end_line, _CODE, "", f"self.{found.member}", "already", "has a mark"))
        elif reason := obstacle(found.found, reading):
            sites.append(Site(line, end_line, _CODE, "", f"self.{found.member}", "refused", reason))
        else:
            wanted[id(found.loop)] = [_marked(found, indices, mark, reading)]
            sites.append(Site(line, end_line, _CODE, "", f"self.{found.member}", "converted"))
    for call in reading.calls:
        if call.name.removeprefix("self.") in settings.split_at and call.name.startswith("self."):
            place = statement(call)
            line, end_line = reading.lines(call.node)
            reason = obstacle(call, reading)
            if reason or place is None:
                sites.append(Site(line, end_line, _CODE, "", call.name, "refused", reason))
            elif _is_marked(place, call.stack, mark, reading):
                sites.append(Site(line, end_line, _CODE, "", call.name, "already", "behind a mark"))
            else:
                wanted[id(place)] = [*statements(f"{mark}\n", reading.tree), place.with_changes(leading_lines=())]
                sites.append(Site(line, end_line, _CODE, "", call.name, "converted"))
    tree = replace(reading.tree, wanted)
    return Outcome(add_import(tree, binding.statement) if wanted and binding.statement else tree, tuple(sites))


def _is_marked(place: cst.CSTNode, stack: tuple[cst.CSTNode, ...], mark: str, reading: Reading) -> bool:
    block = stack[stack.index(place) - 1]
    if not isinstance(block, cst.IndentedBlock):
        return False
    index = next(i for i, node in enumerate(block.body) if node is place)
    before = block.body[index - 1] if index else None
    return isinstance(before, cst.SimpleStatementLine) and reading.tree.code_for_node(before.body[0]).strip() == mark


def _marked(found: LayerLoop, indices: list[int], mark: str, reading: Reading) -> cst.For:
    index = found.index or new_name("layer_index", reading.names)
    condition = f"{index} == {indices[0]}" if len(indices) == 1 else f"{index} in {tuple(indices)}"
    (test,) = statements(f"if {condition}:\n    {mark}\n", reading.tree)
    block = cst.ensure_type(found.loop.body, cst.IndentedBlock)
    loop = found.loop.with_changes(body=block.with_changes(body=[test, *block.body]))
    if found.index:
        return loop
    target = cst.Tuple([cst.Element(cst.Name(index)), cst.Element(found.loop.target)], lpar=(), rpar=())
    return loop.with_changes(target=target, iter=cst.Call(cst.Name("enumerate"), [cst.Arg(found.loop.iter)]))


RULE = Rule(
    code=_CODE,
    name="split-marks",
    safe=False,
    summary="Insert pipe_split() of torch.distributed.pipelining before the layers of split-at.",
    why="""\
PyTorch's tracer cuts a model at these marks. split-at of [tool.annopipe.rewrite] names layers by their number in a loop
over layers ("4"), or members by name ("layer3"). ap.split needs no marks: it takes the same names.
""",
    apply=_apply,
    options={"split_at": ("2", "4", "head")},
    changes=(
        (
            """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        # logits
        return self.head(x)
""",
            """\
import torch
from torch.distributed.pipelining import pipe_split
class Model(torch.nn.Module):
    def forward(self, x):
        for layer_index, layer in enumerate(self.layers):
            if layer_index in (2, 4):
                pipe_split()
            x = layer(x)
        # logits
        pipe_split()
        return self.head(x)
""",
        ),
    ),
    leaves=("class Model:\n    def forward(self, x):\n        return self.tail(x)\n",),
    refuses=(("class M:\n    def f(self, x):\n        if self.head(x):\n            pass\n", "header of a statement"),),
)
