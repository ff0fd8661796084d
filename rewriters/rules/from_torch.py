"""AP201: convert annotations of torch.fx.traceback into tags of annopipe."""

import dataclasses

import libcst as cst

from rewriters.annotations import Annotation, read_annotation
from rewriters.converting import Exchange, exchange
from rewriters.imports import add_import, bind
from rewriters.names import dotted
from rewriters.reading import Reading
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.tags import ANNOTATE, ANNOTATE_FN, is_annotate

__all__ = ["RULE"]

_CODE = "AP201"


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    key: int  # the identity of the item or decorator
    call: cst.Call
    is_item: bool
    annotation: Annotation | str


def _uses(reading: Reading) -> list[_Use]:
    found = []
    for place in reading.withs:
        for item in cst.ensure_type(place.node, cst.With).items:
            if is_annotate(item.item, reading.imports):
                told = _told(reading, item.item, item.asname is not None)
                found.append(_Use(id(item), cst.ensure_type(item.item, cst.Call), True, told))
    for place in reading.functions:
        for decorator in cst.ensure_type(place.node, cst.FunctionDef).decorators:
            node = decorator.decorator
            if is_annotate(node, reading.imports, ANNOTATE_FN):
                told = _told(reading, node, named=False)
                if isinstance(told, Annotation) and told.rest:
                    told = "the annotation has keys that are no regions: give them a decorator of their own"
                found.append(_Use(id(decorator), cst.ensure_type(node, cst.Call), False, told))
            elif is_annotate(node, reading.imports):
                reason = "annotate as a decorator: write annotate_fn"
                found.append(_Use(id(decorator), cst.ensure_type(node, cst.Call), False, reason))
    return found


def _told(reading: Reading, node: cst.BaseExpression, named: bool) -> Annotation | str:
    call = cst.ensure_type(node, cst.Call)
    if not reading.imports.is_certain(dotted(call.func)):
        return f"{dotted(call.func)} is imported and also bound otherwise in this file: tell them apart"
    if named:
        return "the annotation is given a name with 'as': take that out"
    return read_annotation(call, reading.tree)


def _apply(reading: Reading, settings: Settings) -> Outcome:
    uses = _uses(reading)
    calls = {use.annotation.call for use in uses if isinstance(use.annotation, Annotation)}
    binding = bind(reading, "annopipe", calls, settings.import_style)
    items: dict[int, list[str]] = {}
    decorators: dict[int, str] = {}
    sites = []
    for use in uses:
        line, end_line = reading.lines(use.call)
        anchor = reading.tree.code_for_node(use.call)
        told = use.annotation
        if isinstance(told, str):
            sites.append(Site(line, end_line, _CODE, "", anchor, "refused", told))
            continue
        code = f"{binding.names[told.call]}({told.argument})"
        sites.append(Site(line, end_line, _CODE, "", anchor, "converted"))
        if use.is_item:
            rest = [f"{dotted(use.call.func)}({{{told.rest}}})"] if told.rest else []
            items[use.key] = [*rest, code] if told.rest_first else [code, *rest]
        else:
            decorators[use.key] = code
    tree = exchange(reading.tree, Exchange(items, decorators))
    if tree is not reading.tree and binding.statement:
        tree = add_import(tree, binding.statement)
    return Outcome(tree, tuple(sites))


RULE = Rule(
    code=_CODE,
    name="from-torch",
    summary="Convert torch.fx.traceback.annotate and annotate_fn to tags of annopipe.",
    why=f"""\
{ANNOTATE} takes any dictionary. Those that torchtitan and autoparallel write for expert parallelism, and those
that annopipe's own tags write, become tags; keys that are no regions stay in an annotate of their own. The import of
annotate stays too, so that AP202 can put everything back; your linter says whether it is still used.
""",
    apply=_apply,
    triggers=("annotate",),
    changes=(
        (
            """\
import torch.fx.traceback as fx_traceback
def exchange(x):
    with fx_traceback.annotate({"comm_region": "token_dispatch"}):
        return all_to_all(x)
""",
            """\
import annopipe
import torch.fx.traceback as fx_traceback
def exchange(x):
    with annopipe.comm("dispatch"):
        return all_to_all(x)
""",
        ),
        (
            """\
from torch.fx.traceback import annotate, annotate_fn as tagged
@tagged({'EP': 'compute'})
def moe(x):
    with annotate({"EP": "combine", "mine": 1}), annotate({"annopipe_lane": 0}):
        return x
""",
            """\
import annopipe
from torch.fx.traceback import annotate, annotate_fn as tagged
@annopipe.region('moe')
def moe(x):
    with annopipe.comm("combine"), annotate({"mine": 1}), annopipe.nano_batch(0):
        return x
""",
        ),
    ),
    leaves=("def annotate(x):\n    return x\nwith annotate({'EP': 'dispatch'}):\n    pass\n",),
    refuses=(
        (
            "from torch.fx.traceback import annotate\nwith annotate({'layer': 1}):\n    pass\n",
            "no vocabulary has a region",
        ),
        ("from torch.fx.traceback import annotate\nwith annotate(tags):\n    pass\n", "no literal dictionary"),
        (
            "from torch.fx.traceback import annotate\nwith annotate({'a': 1, 'EP': 'combine', 'b': 2}):\n    pass\n",
            "put it first or last",
        ),
    ),
)
