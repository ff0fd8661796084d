"""Dictionaries given to ``annotate``, as items in order, so that one can be told apart from the rest and put back."""

import dataclasses
from collections.abc import Sequence

import libcst as cst

from rewriters.names import string_value
from rewriters.vocabularies import KIND_KEY, LANE_KEY, REGION_KEY, from_torch

__all__ = ["Annotation", "dictionary", "quote_of", "read_annotation"]

Item = tuple[str, cst.BaseExpression]


@dataclasses.dataclass(frozen=True, slots=True)
class Annotation:
    """What a dictionary of annotations says.

    Args:
        call: our call for the one tag in it: region, comm or nano_batch.
        argument: its argument, as code.
        rest: the items that are none of ours, as code; "" if there are none.
        rest_first: whether they come before.
    """

    call: str
    argument: str
    rest: str = ""
    rest_first: bool = False


def read_annotation(
    call: cst.Call, tree: cst.Module, constants: dict[str, cst.BaseExpression] | None = None
) -> Annotation | str:
    """The annotation that a call of ``annotate`` or ``annotate_fn`` makes, or why it cannot be told.

    Args:
        constants: names that stand for strings.
    """
    node = call.args[0].value if len(call.args) == 1 else None
    if not isinstance(node, cst.Dict):
        return "the annotation is no literal dictionary"
    items: list[Item] = []
    for element in node.elements:
        if not isinstance(element, cst.DictElement):
            return "the annotation is no literal dictionary"
        name = element.key
        if constants is not None and isinstance(name, cst.Name):
            name = constants.get(name.value, name)
        key = string_value(name)
        if key is None:
            return "a key of the annotation is no string: write it out"
        items.append((key, element.value))
    return _told(items, node, tree)


def _told(items: Sequence[Item], node: cst.Dict, tree: cst.Module) -> Annotation | str:
    own = [index for index, item in enumerate(items) if _known(item) is not None or item[0] in (REGION_KEY, KIND_KEY)]
    tags = [index for index in own if items[index][0] != KIND_KEY]
    if not tags:
        keys = ", ".join(repr(key) for key, _ in items)
        return f"no vocabulary has a region for {keys}"
    if len(tags) > 1 or own != list(range(own[0], own[-1] + 1)):
        return "several regions in one annotation: give each an annotation of its own"
    if own[0] > 0 and own[-1] < len(items) - 1:
        return "the region stands between other keys: put it first or last"
    key, value = items[tags[0]]
    known = _known(items[tags[0]])
    if key == REGION_KEY:
        kind = [string_value(v) for k, v in items if k == KIND_KEY]
        name = string_value(value)
        if name is None or kind not in (["comm"], ["compute"]):
            return f"{REGION_KEY!r} needs a literal name, and {KIND_KEY!r} behind it"
        known = ("comm" if kind == ["comm"] else "region", name)
    if known is None:
        return "no vocabulary has a region for that"
    call, region = known
    quote = quote_of(value)
    argument = tree.code_for_node(value) if call == "nano_batch" else f"{quote}{region}{quote}"
    others = [
        tree.code_for_node(element.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        for i, element in enumerate(node.elements)
        if i not in own
    ]
    return Annotation(call, argument, ", ".join(others), rest_first=own[0] > 0)


def _known(item: Item) -> tuple[str, str] | None:
    key, value = item
    if key == LANE_KEY:
        return ("nano_batch", "")
    text = string_value(value)
    return None if text is None else from_torch(key, text)


def quote_of(value: cst.BaseExpression) -> str:
    """The quotation mark that a string is written with, so that what is written for it has the same.

    >>> quote_of(cst.parse_expression("'a'"))
    "'"
    """
    return value.quote[0] if isinstance(value, cst.SimpleString) else '"'


def dictionary(items: dict[str, str], quote: str, rest: str = "", *, rest_first: bool = False) -> str:
    r"""The code of a dictionary of annotations.

    >>> dictionary({"EP": '"dispatch"'}, '"', "'mine': 1")
    '{"EP": "dispatch", \'mine\': 1}'
    """
    own = ", ".join(f"{quote}{key}{quote}: {value}" for key, value in items.items())
    parts = (rest, own) if rest_first else (own, rest)
    return "{" + ", ".join(filter(None, parts)) + "}"
