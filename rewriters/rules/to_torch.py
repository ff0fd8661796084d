"""AP202: convert tags of annopipe into annotations of torch.fx.traceback."""

import libcst as cst

from rewriters.annotations import dictionary, quote_of
from rewriters.converting import Exchange, exchange
from rewriters.imports import Binding, add_import, bind
from rewriters.names import dotted
from rewriters.reading import Reading
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.stripping import unused_names
from rewriters.tags import Tag, is_annotate, own_tag
from rewriters.vocabularies import LANE_KEY, checked, to_torch

__all__ = ["RULE"]

_CODE = "AP202"
_MODULE = "torch.fx.traceback"


def _apply(reading: Reading, settings: Settings) -> Outcome:
    tags = _tags(reading)
    sites: list[Site] = []
    annotations: dict[int, dict[str, str]] = {}
    for key, (tag, _) in tags.items():
        line, end_line = reading.lines(tag.node)
        code = reading.tree.code_for_node(tag.node)
        told = _annotation(tag, reading, settings)
        if isinstance(told, str):
            sites.append(Site(line, end_line, _CODE, "", code, "refused", told))
        else:
            annotations[key] = told
            sites.append(Site(line, end_line, _CODE, "", code, "converted"))
    if not annotations:
        return Outcome(reading.tree, tuple(sites))
    calls = {tags[key][1] for key in annotations}
    binding = bind(reading, _MODULE, calls, "names", by_parent=True)
    items = _items(reading, annotations, binding)
    decorators = {
        key: f"{binding.names['annotate_fn']}({dictionary(told, _quote(tags[key][0]))})"
        for key, told in annotations.items()
        if tags[key][1] == "annotate_fn"
    }
    tree = exchange(reading.tree, Exchange(items, decorators))
    used = {dotted(tags[key][0].node.func).partition(".")[0] for key in annotations}
    tree = unused_names(tree, used, "annopipe")
    return Outcome(add_import(tree, binding.statement) if binding.statement else tree, tuple(sites))


def _tags(reading: Reading) -> dict[int, tuple[Tag, str]]:
    """Our tags by the identity of their item or decorator, with the function of PyTorch for each."""
    found = {}
    for place in reading.withs:
        for item in cst.ensure_type(place.node, cst.With).items:
            if (tag := own_tag(item.item, reading.imports)) is not None:
                found[id(item)] = tag, "annotate"
    for place in reading.functions:
        for decorator in cst.ensure_type(place.node, cst.FunctionDef).decorators:
            if (tag := own_tag(decorator.decorator, reading.imports)) is not None:
                found[id(decorator)] = tag, "annotate_fn"
    return found


def _annotation(tag: Tag, reading: Reading, settings: Settings) -> dict[str, str] | str:
    """Keys and the code of their values."""
    if tag.call == "nano_batch":
        return {LANE_KEY: reading.tree.code_for_node(tag.node.args[0].value)}
    if not tag.path:
        return "the name of the region is no string: write it out"
    words = to_torch(checked(settings.vocabulary), tag.call, tag.path)
    if words is None:
        return (
            f"the vocabulary {settings.vocabulary} has no word for {tag.call}({tag.path!r}): --vocabulary annopipe has "
            "one for every region"
        )
    quote = _quote(tag)
    return {key: f"{quote}{value}{quote}" for key, value in words.items()}


def _quote(tag: Tag) -> str:
    return quote_of(tag.node.args[0].value)


def _items(reading: Reading, annotations: dict[int, dict[str, str]], binding: Binding) -> dict[int, list[str]]:
    """New items; a literal ``annotate`` beside a tag takes it in, which is what AP201 has taken apart."""
    found: dict[int, list[str]] = {}
    for place in reading.withs:
        items = cst.ensure_type(place.node, cst.With).items
        for index, item in enumerate(items):
            if id(item) not in annotations:
                continue
            told = annotations[id(item)]
            quote = _quote_of_item(item)
            for other, rest_first in ((index + 1, False), (index - 1, True)):
                if 0 <= other < len(items) and id(items[other]) not in found:
                    rest = _literal(items[other], reading)
                    if rest is not None:
                        name = dotted(cst.ensure_type(items[other].item, cst.Call).func)
                        code = f"{name}({dictionary(told, quote, rest, rest_first=rest_first)})"
                        found[id(items[min(index, other)])], found[id(items[max(index, other)])] = [], [code]
                        break
            else:
                found[id(item)] = [f"{binding.names['annotate']}({dictionary(told, quote)})"]
    return found


def _quote_of_item(item: cst.WithItem) -> str:
    return quote_of(cst.ensure_type(item.item, cst.Call).args[0].value)


def _literal(item: cst.WithItem, reading: Reading) -> str | None:
    """The inside of ``annotate({...})``."""
    call = item.item
    if not is_annotate(call, reading.imports) or not isinstance(call, cst.Call) or item.asname is not None:
        return None
    node = call.args[0].value if len(call.args) == 1 else None
    if not isinstance(node, cst.Dict) or not node.elements:
        return None
    return reading.tree.code_for_node(node).strip("{}").strip()


RULE = Rule(
    code=_CODE,
    name="to-torch",
    summary="Convert tags of annopipe to torch.fx.traceback.annotate, for code that must not import annopipe.",
    why="""\
The way back of AP201; --vocabulary names the words to write: torchtitan, autoparallel, comm_region, or annopipe, which
has a word for every region (what annopipe's tags annotate with themselves; levels of nested tags are not joined there).
""",
    apply=_apply,
    triggers=("annopipe",),
    changes=(
        (
            """\
import annopipe
import torch
@annopipe.region("moe")
def moe(x):
    with annopipe.comm("dispatch"):
        return torch.relu(x)
""",
            """\
import torch
@torch.fx.traceback.annotate_fn({"EP": "compute"})
def moe(x):
    with torch.fx.traceback.annotate({"EP": "dispatch"}):
        return torch.relu(x)
""",
        ),
        (
            """\
from annopipe import comm, trace
from torch.fx.traceback import annotate
with comm("combine"), annotate({"mine": 1}):
    trace()
""",
            """\
from annopipe import trace
from torch.fx.traceback import annotate
with annotate({"EP": "combine", "mine": 1}):
    trace()
""",
        ),
    ),
    refuses=(
        ('import annopipe\nwith annopipe.region("attention"):\n    pass\n', "has no word for region('attention')"),
        ("import annopipe\nwith annopipe.region(name):\n    pass\n", "is no string"),
    ),
)
